"""The examples of docs/sandbox.md run as they are printed."""

import re
from pathlib import Path
from typing import Any

import pytest
from attack_cases import ATTACKS, STOPPED_BY, table

from bara_pyro.extras.replies.sandbox import Problem

PAGE = Path(__file__).parents[4] / "docs" / "sandbox.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.usefixtures("isolation")
def test_the_first_example_prints_what_it_should(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[0], str(PAGE), "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["ended 0 olleh", "passed", "SystemExit: 0"]


@pytest.mark.usefixtures("isolation")
def test_the_second_example_judges(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    test = "def check(candidate):\n    assert candidate() == 1"
    problem = Problem("A/0", 'def f():\n    """Return 1."""\n', "f", test, "    return 1")
    monkeypatch.setattr("bara_pyro.extras.replies.sandbox.load_humaneval", lambda path: (problem,))
    names: dict[str, Any] = {"complete": lambda prompt: "    return 1\n\nprint(f())"}
    exec(compile(BLOCKS[1], str(PAGE), "exec"), names)
    assert capsys.readouterr().out.split() == ["0", "A/0", "passed"]


def test_the_table_is_that_of_the_attacks() -> None:
    """Where this fails: python tests/extras/replies/sandbox/attack_cases.py, into docs/sandbox.md."""
    named = [name for names in STOPPED_BY.values() for name in names]
    assert sorted(named) == sorted(ATTACKS)  # each once
    assert table() in PAGE.read_text(encoding="utf-8")
    assert len(table().splitlines()) <= 50

"""The example of the page on generation, run to its end."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "generation.md"


def test_the_example_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    found: dict[str, object] = {}
    exec(compile(code, str(PAGE), "exec"), found)
    lines = capsys.readouterr().out.splitlines()
    replies = found["replies"]
    assert isinstance(replies, list)
    assert len(replies) == 12
    assert len(lines) == 24
    # It has learnt how replies go: three clauses, each with its full stop, and then the end.
    assert sum(reply["ended"] for reply in replies) >= 10
    assert sum(reply["reply"].count(" .") for reply in replies) >= 24

"""The example of docs/compare.md runs as it stands."""

import re
from pathlib import Path

import pytest
from test_paired import predictions, write

PAGE = Path(__file__).parents[2] / "docs" / "compare.md"


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, skill in (("first", 1.2), ("lora", 0.9)):
        write(tmp_path / "runs" / name, {10: predictions(3, skill)})
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    exec(compile(block, str(PAGE), "exec"), {})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "acc",
        "ece",
        "nll",
        "brier",
    ]

"""The example of docs/replies.md runs as it is printed, and learns."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "replies.md"


@pytest.mark.slow
def test_the_example_learns(capsys: pytest.CaptureFixture[str]) -> None:
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, str(PAGE), "exec"), names)
    before, mean, drawn = map(float, capsys.readouterr().out.split())
    assert mean < before - 0.05
    assert drawn < before - 0.05

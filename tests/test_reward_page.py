"""The example of docs/reward.md runs as it is printed, and learns."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "reward.md"


@pytest.mark.slow
def test_the_example_learns() -> None:
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, str(PAGE), "exec"), names)
    found = names["reward"].held_out
    assert found["low"] > max(found["longer_high"], 100 - found["longer_low"])

"""The examples of docs/diagnostics.md run as they stand, on a run of a few rows."""

import re
from pathlib import Path

from bara_pyro.config import load_config
from bara_pyro.folder import save_system, write_config
from bara_pyro.system import build_system

PAGE = Path(__file__).parents[2] / "docs" / "diagnostics.md"


def test_the_examples_run_in_order(tmp_path: Path) -> None:
    system = build_system(load_config(overrides={"method": "bara", "task.limit": 8}))
    write_config(system, tmp_path)
    save_system(system, tmp_path, step=1)
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict = {}
    exec(compile(first.replace("runs/first", str(tmp_path)), PAGE.name, "exec"), names)
    assert names["draws"].theta.shape[:2] == (20, 8)
    exec(compile(second.replace("rows=64, samples=100", "rows=8, samples=30"), PAGE.name, "exec"), names)
    assert names["data"].posterior["phi"].dims == ("chain", "draw", "module", "rank")

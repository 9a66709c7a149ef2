"""The examples of docs/diagnostics.md run as they stand, on a run of a few rows."""

import re
from pathlib import Path

import pytest

from bara_pyro.runs.config import load_config
from bara_pyro.runs.folder import save_system, write_config
from bara_pyro.runs.system import build_system

PAGE = Path(__file__).parents[2] / "docs" / "diagnostics.md"


@pytest.mark.slow
def test_the_examples_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for run, method in (("first", "bara"), ("second", "mc_dropout")):
        system = build_system(load_config(overrides={"method": method, "task.limit": 8}))
        for name, weight in system.model.named_parameters():
            if name.endswith("lora_B"):
                weight.data.fill_(0.02)  # B starts at 0, where no draw makes a difference
        write_config(system, tmp_path / "runs" / run)
        save_system(system, tmp_path / "runs" / run, step=1)
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict = {}
    exec(compile(first, PAGE.name, "exec"), names)
    assert names["draws"].theta.shape[:2] == (20, 8)
    smaller = re.sub(r"rows=\d+, samples=100", "rows=8, samples=30", second)
    # What a line evaluates is looked at, as a notebook would show it.
    lines = smaller.replace("print(compare(trained_on))", "ranked = compare(trained_on)")
    exec(compile(lines, PAGE.name, "exec"), names)
    assert names["data"].posterior["phi"].dims == ("chain", "draw", "module", "rank")
    assert {line.method for line in names["ranked"]} == {"BaRA", "MC-Dropout"}
    assert names["read_netcdf"](Path("runs/first/posterior.nc")).posterior.equals(names["data"].posterior)
    assert len(list(Path("runs/first/figures").glob("*.png"))) == 3

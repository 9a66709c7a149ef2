"""The study of pruning: its runs, what it reads off one, the section."""

from argparse import Namespace
from collections.abc import Callable

import pytest

from bara_pyro.data import first_rows
from bara_pyro.diagnostics.gates.prune import prune
from bara_pyro.runs.config import load_config
from bara_pyro.runs.system import build_system
from experiments.engine.results import stored_records
from experiments.engine.sweep import Job
from experiments.studies.pruning import study as pruning


def test_what_is_read_off_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "TOLERANCES", (0.05, 1.0))
    settings = {"method": "bara", "task.name": "micro-arcc", "task.limit": 8, "adapter.r": 2}
    system = build_system(load_config(overrides={**settings, "adapter.target_modules": ["v_proj"]}))
    found = pruning.look(system, Namespace(calibration=4, rows=5))
    assert found["units"] == 2 * len(system.model.targets)
    assert found["kept"]["0.05"] == prune(system, first_rows(system.split("train"), 4), 0.05).kept
    assert found["kept"]["1.0"] == len(system.model.targets)  # everything may change: one unit a module
    assert found["curve"][0]["share"] == 100
    assert found["curve"][0]["difference"] == 0


def test_runs_are_those_of_the_main_table(jobs_of: Callable[..., list[Job]]) -> None:
    hashes = {load_config(overrides=dict(job.settings)).hash for job in jobs_of("pruning", "--seeds", "2")}
    assert len(hashes) == 3 * 2 * 2
    assert hashes <= stored_records().keys()

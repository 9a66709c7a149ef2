"""The study of pruning: its runs, what it reads off one, the section."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
from study_cases import page_of

from bara_pyro.data import first_rows
from bara_pyro.diagnostics.gates.prune import prune
from bara_pyro.runs.config import load_config
from bara_pyro.runs.system import build_system
from experiments.engine.results import stored_records
from experiments.engine.sweep import Job
from experiments.studies.pruning import study as pruning
from experiments.studies.pruning.study import curve_figure, tolerance_table


def entry(method: str, task: str, seed: int, nll: float) -> dict:
    scores = {"acc": 70.0, "ece": 5.0, "difference": 0.0, "parameters": 100, "time": 1.0}
    curve = [{"share": 100.0, **scores, "nll": nll}, {"share": 25.0, **scores, "nll": nll + 1, "acc": 60.0}]
    kept = {"0.01": 36 + 18 * seed, "0.2": 9}
    return {"method": method, "task": task, "seed": seed, "units": 72, "kept": kept, "curve": curve}


def stored() -> dict:
    about = {"model": "microworld", "steps": 10, "rows": 6, "calibration": 4, "samples": 2}
    entries = [
        entry(method, task, seed, nll + seed)
        for method in ("lora", "bara")
        for task, nll in (("micro-wgs", 0.5), ("micro-arcc", 1.5))
        for seed in (0, 1)
    ]
    return {"about": about, "entries": {str(i): e for i, e in enumerate(entries)}}


def test_section(tmp_path: Path) -> None:
    text = page_of("pruning", stored(), tmp_path / "figures", "Little can go.")
    assert "Little can go." in text
    # 36 and 54 of 72 units: 50 and 75 %, deviation 17.7; tasks 0.5 and 1.5: mean 1 and, with seed 1, 2.
    assert "| MLE (LoRA) | micro-wgs | 62.5 ± 17.7 | 12.5 ± 0.0 |" in text
    assert "| BaRA | 100 | 70.0 ± 0.0 | 5.0 ± 0.0 | 1.500 ± 0.707 |" in text
    assert "| BaRA | 25 | 60.0 ± 0.0 | 5.0 ± 0.0 | 2.500 ± 0.707 |" in text
    assert (tmp_path / "figures" / "pruning.svg").exists()
    lines = curve_figure(list(stored()["entries"].values())).axes[1].lines
    assert [line.get_label() for line in lines] == ["MLE (LoRA)", "BaRA"]
    assert list(lines[0].get_ydata()) == [1.5, 2.5]


def test_one_seed_has_no_spread() -> None:
    one = [e for e in stored()["entries"].values() if e["seed"] == 0]
    assert tolerance_table(one).rows[0]["0.01"] == 50.0


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

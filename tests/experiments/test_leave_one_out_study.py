"""The study of PSIS-LOO beside unseen rows: what is ranked, what is read from the runs, the section."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
from study_cases import page_of

from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
from bara_pyro.diagnostics.arviz.loo import loo
from bara_pyro.runs.config import load_config
from bara_pyro.runs.folder import load_system, save_system, write_config
from bara_pyro.runs.system import build_system
from experiments.engine.methods import tagged
from experiments.engine.results import stored_records
from experiments.engine.sweep import Job
from experiments.studies.leave_one_out import study as leave_one_out
from experiments.studies.leave_one_out.study import agreement, loo_figure, rows_of


def row(method: str, elpd: float, unseen: float) -> dict:
    about = {"se": 0.05, "difference": 0.0, "difference_se": 0.01, "p": 3.0, "weight": 0.5}
    return {"method": method, "elpd": elpd, "unseen": unseen, "unreliable": 16, "rows": 128, **about}


def stored() -> dict:
    entries = {
        f"micro-wgs {seed}": {
            "task": "micro-wgs",
            "seed": seed,
            "rows": [row("bara", -0.4 - seed / 10, -0.6), row("blob", -0.3 - seed / 10, -0.7)],
        }
        for seed in (0, 1)
    }
    about = {"model": "microworld", "steps": 10, "samples": 100, "methods": ["blob", "bara"]}
    return {"about": about, "entries": entries}


def test_section(tmp_path: Path) -> None:
    text = page_of("leave_one_out", stored(), tmp_path / "figures", "It is too hopeful.")
    assert "It is too hopeful." in text
    lines = [line for line in text.splitlines() if line.startswith("| B")]
    # Best first; deviation of two numbers 0.1 apart: 0.071; 16 of 128 rows: 12.5 %.
    assert lines[0].startswith("| BLoB | **-0.350 ± 0.071** |")
    assert "| -0.700 ± 0.000 | +0.350 ± 0.071 | 12.5 ± 0.0 |" in lines[0]
    assert lines[1].startswith("| BaRA | -0.450 ± 0.071 |")
    assert "Spearman's ρ of both columns -1.00" in text
    assert (tmp_path / "figures" / "leave-one-out.svg").exists()


def test_figure_has_a_point_a_method_and_seed() -> None:
    axes = loo_figure(list(stored()["entries"].values())).axes[0]
    points = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines[:2]}
    assert points["BaRA"] == ([-0.4, -0.5], [-0.6, -0.6])
    rows = rows_of("micro-wgs", list(stored()["entries"].values()))
    assert agreement(rows) == pytest.approx(-1)
    assert [one["method"] for one in rows] == ["blob", "blob", "bara", "bara"]


def test_what_is_ranked(tmp_path: Path) -> None:
    records = {}
    for number, method in enumerate(("bara", "mc_dropout")):
        settings = {"method": method, "task.name": "micro-wgs", "task.limit": 8, "adapter.r": 2}
        system = build_system(load_config(overrides={**settings, "adapter.target_modules": ["v_proj"]}))
        for name, weight in system.model.named_parameters():
            if name.endswith("lora_B"):
                weight.data.fill_(0.05)  # B starts at 0, where no draw makes a difference
        folder = tmp_path / str(number)
        write_config(system, folder)
        save_system(system, folder, step=1)
        records[method] = {"config_hash": str(number), "metrics": {"10": {"nll": 0.5 + number}}}
    args = Namespace(runs=tmp_path, rows=100, samples=30)
    found = {row["method"]: row for row in leave_one_out.ranked(records, args)}
    assert {row["rows"] for row in found.values()} == {8}
    assert (found["bara"]["unseen"], found["mc_dropout"]["unseen"]) == (-0.5, -1.5)
    again = loo(
        to_inference_data(load_system(tmp_path / "0"), split="train", rows=8, samples=30, prior=False)
    )
    assert found["bara"]["elpd"] == pytest.approx(again.elpd / 8)
    assert found["bara"]["unreliable"] == len(again.unreliable)


def test_runs_are_those_of_the_main_table(jobs_of: Callable[..., list[Job]]) -> None:
    hashes = {load_config(overrides=dict(job.settings)).hash for job in jobs_of("leave_one_out")}
    assert len(hashes) == len(tagged("spread")) * 2 * 3
    assert hashes <= stored_records().keys()

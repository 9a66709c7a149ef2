"""The study of PSIS-LOO beside unseen rows: what is ranked, what is read from the runs, the section."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
from bara_pyro.diagnostics.arviz.loo import loo
from bara_pyro.runs.config import load_config
from bara_pyro.runs.folder import load_system, save_system, write_config
from bara_pyro.runs.system import build_system
from experiments.engine.methods import tagged
from experiments.engine.results import stored_records
from experiments.engine.sweep import Job
from experiments.studies.leave_one_out import study as leave_one_out


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

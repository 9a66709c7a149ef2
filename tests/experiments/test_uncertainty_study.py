"""The study of what the uncertainties mean: what is measured, the section, the runs it shares."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from study_cases import page_of

from bara_pyro.data import first_rows
from bara_pyro.metrics import decompose
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw, true_probabilities
from bara_pyro.runs.system import System, build_system
from experiments.engine.sweep import Job
from experiments.studies.uncertainty import study as uncertainty
from experiments.studies.uncertainty.study import size_table


def fitted(method: str) -> System:
    settings = {"method": method, "task.name": "micro-obqa", "task.limit": 20}
    system = build_system(load_config(overrides=settings))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in system.model.named_parameters():
            if name.endswith("lora_B"):
                weight.add_(0.05 * torch.randn_like(weight))
    return system


@pytest.mark.parametrize("method", ["bara", "ensemble"])
def test_what_is_measured(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncertainty, "NESTED", 3)
    system = fitted(method)
    found = uncertainty.measure(system, 12)
    rows = first_rows(system.split("test"), 12)
    parts = decompose(draw(system, rows, 9, repeats=3 if method == "bara" else 1))
    assert found["epistemic"] == pytest.approx(float(parts.epistemic.mean()))
    assert found["total"] == pytest.approx(found["aleatoric"] + found["epistemic"])
    truth = true_probabilities(system, rows, "test")
    entropy = -(truth * truth.clamp_min(1e-300).log()).sum(-1)
    assert found["bias"] == pytest.approx(float((parts.aleatoric - entropy).mean()))
    if method == "bara":
        assert found["global"] + found["local"] == pytest.approx(found["epistemic"])
        assert min(found["global"], found["local"]) > 0
    else:
        assert "global" not in found


def test_a_run_has_the_rows_that_it_is_given(
    jobs_of: Callable[..., list[Job]], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of("uncertainty", "--sizes", "16", "80", "--methods", "bara")
    assert [load_config(overrides=dict(job.settings)).task.train_rows for job in jobs] == [16, 80]
    monkeypatch.setattr(uncertainty, "NESTED", 2)
    found = uncertainty.look(fitted("bara"), Namespace(rows=6))
    assert set(found["tasks"]) == {"micro-obqa", "micro-near", "micro-far"}


def stored(seeds: tuple[int, ...] = (0, 1)) -> dict:
    about = {"steps": 10, "rows": 6, "nested": 2, "task": "micro-obqa"}
    entries = {}
    for method in ("ensemble", "bara"):
        for size in (80, 320):
            for seed in seeds:
                numbers = {"acc": 70.0, "kl": 0.1, "aleatoric": 0.5, "bias": 0.1, "rho": 0.3}
                numbers["epistemic"] = (0.1 + 0.02 * seed) * 80 / size
                if method == "bara":
                    numbers |= {"global": 0.04, "local": 0.06}
                tasks = {"micro-obqa": numbers, "micro-far": numbers}
                entries[f"{method} {size} {seed}"] = {
                    "method": method, "size": size, "seed": seed, "tasks": tasks,
                }  # fmt: skip
    return {"about": about, "entries": entries}


def test_section(tmp_path: Path) -> None:
    text = page_of("uncertainty", stored(), tmp_path, "Words.")
    assert "2 seeds" in text
    assert "Words." in text
    assert (tmp_path / "uncertainty-rows.svg").exists()
    rows = size_table(list(stored()["entries"].values())).rows
    assert len(rows) == 2 * 2 * 2
    assert rows[0]["epistemic"] == pytest.approx((0.11, 0.02 / 2**0.5))
    assert rows[0]["global"] is None

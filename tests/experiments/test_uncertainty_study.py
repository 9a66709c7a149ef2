"""The study of what the uncertainties mean: what is measured, the section, the runs it shares."""

from argparse import Namespace
from collections.abc import Callable

import pytest
import torch

from bara_pyro.data import first_rows
from bara_pyro.metrics import decompose
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw, true_probabilities
from bara_pyro.runs.system import System, build_system
from experiments.engine.sweep import Job
from experiments.studies.uncertainty import study as uncertainty


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

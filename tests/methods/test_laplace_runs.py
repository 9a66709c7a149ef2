"""Laplace-LoRA: training, folders of runs, sizes and mistakes."""

import json
from pathlib import Path

import pytest
import torch
from core_cases import backbone, make_batch, mean_forward, randomise
from fit_cases import assert_runs_come_back, tiny_run
from laplace_cases import fitted, halves, toy
from method_cases import made
from torch.nn import functional as F
from torch.testing import assert_close

from bara_pyro.cli.architectures import empty_backbone
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.prediction import predict
from bara_pyro.errors import ConfigError
from bara_pyro.guides.laplace import LaplaceGuide
from bara_pyro.methods.laplace import fit_laplace
from bara_pyro.models.gaussian_lora import GaussianLoRA
from bara_pyro.runs.store import read_tensors
from bara_pyro.runs.system import build_system, count_parameters
from bara_pyro.runs.train import train


def test_before_the_fit_it_is_a_point() -> None:
    model, guide = toy()
    batch = make_batch()
    point = mean_forward(model, guide, batch).double()
    assert_close(predict(model, guide, batch, samples=5), point.expand(5, -1, -1), rtol=0, atol=1e-6)
    assert not list(guide.parameters())
    with pytest.raises(ConfigError, match="train with the method laplace first"):
        guide.linearised(batch)


def test_the_objective_of_training() -> None:
    model, guide = made("laplace", r=2)
    randomise(model)
    batch = make_batch()
    log_probs = mean_forward(model, guide, batch)
    truth = 3 * F.nll_loss(log_probs, batch.labels, reduction="sum").double()
    loss = MeanFieldELBO().terms(model, guide, batch).loss
    assert loss.item() == pytest.approx(truth.item(), rel=1e-5)


def test_the_memory_of_a_published_architecture() -> None:
    model, guide = made("laplace", r=8, frozen=empty_backbone("qwen2.5-7b"))
    # 85 factors of side 3584 (57 inputs, 28 outputs), 28 of 512, small ones; 12 bytes an entry.
    with pytest.raises(ConfigError, match=r"13\.2 GB.*max_gigabytes=1:.*subset=last"):
        LaplaceGuide(model, max_gigabytes=1.0).check_size(4)
    guide.check_size(4)
    LaplaceGuide(model, subset="last", max_gigabytes=0.2).check_size(4)


@pytest.mark.parametrize("settings", [{}, {"subset": "last"}])
def test_runs_come_back(settings: dict, tmp_path: Path) -> None:
    config = tiny_run(tmp_path, {"name": "laplace", **settings})
    system = assert_runs_come_back(config, tmp_path)
    figures = json.loads((tmp_path / "whole" / "fitted.json").read_text())
    assert figures["prior_precision"] == float(system.guide.posterior.precision)
    assert {"log_evidence", "mean_logit_variance", "effective_parameters", "fit_seconds"} <= figures.keys()
    stored, _ = read_tensors(tmp_path / "whole" / "guide.safetensors")
    for name, value in system.guide.named_parameters():
        assert torch.equal(stored[name], value)
    assert count_parameters(system.guide) == 0


def test_factors_that_are_too_large_are_refused_before_training(tmp_path: Path) -> None:
    system = build_system(tiny_run(tmp_path, {"name": "laplace"}))
    system.guide.max_gigabytes = 1e-6
    with pytest.raises(ConfigError, match="choose subset=last"):
        train(system, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_mistakes_are_named() -> None:
    _, guide, _, _ = fitted()
    with pytest.raises(ConfigError, match="add it to target_modules"):
        toy(targets=["q_proj"], subset="last")
    with pytest.raises(ConfigError, match="random='AB' without flipout"):
        LaplaceGuide(GaussianLoRA(backbone(), 4, r=2, random="A", prior_scale=0.2))
    for name in ("subset", "mode"):
        with pytest.raises(ConfigError, match="choose one of"):
            toy(**{name: "other"})
    with pytest.raises(ConfigError, match="choose one of"):
        fit_laplace(guide, halves(), tokens="other")

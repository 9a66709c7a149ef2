"""Laplace-LoRA: training, the posterior of the weights and its draws, folders of runs, sizes and mistakes."""

import json
from pathlib import Path

import pytest
import torch
from core_cases import backbone, make_batch, mean_forward, randomise
from fit_cases import assert_runs_come_back, tiny_run
from laplace_cases import HEAD, dense_covariance, fitted, halves, toy, weights_of
from method_cases import assert_stock_draws_agree, made
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.nn import functional as F
from torch.testing import assert_close

from bara_pyro.cli.architectures import empty_backbone
from bara_pyro.core.distributions.normal import KroneckerNormal
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


def distribution_of(rows: Tensor | None) -> tuple[KroneckerNormal, Tensor]:
    """A distribution over 3 x 2 matrices (at two rows of it only, or all) and its dense covariance."""
    m = 3 if rows is None else len(rows)
    left, right = torch.randn(m, 5).double(), torch.randn(2, 4).double()
    left, right = left @ left.T, right @ right.T
    (f, u), (g, v) = torch.linalg.eigh(left), torch.linalg.eigh(right)
    distribution = KroneckerNormal(u, f, v, g, torch.tensor(0.7).double(), rows=rows, size=3)
    curvature = torch.kron(left, right)
    if rows is not None:
        entries = (rows[:, None] * 2 + torch.arange(2)).flatten()
        whole = torch.zeros(6, 6).double()
        whole[entries[:, None], entries] = curvature
        curvature = whole
    return distribution, torch.linalg.inv(curvature + 0.7 * torch.eye(6).double())


@pytest.mark.parametrize("rows", [None, torch.tensor([2, 0])])
def test_the_distribution_of_a_matrix(rows: Tensor | None) -> None:
    distribution, covariance = distribution_of(rows)
    dense = MultivariateNormal(torch.zeros(6).double(), covariance)
    value = torch.randn(4, 3, 2).double()
    assert_close(distribution.log_prob(value), dense.log_prob(value.flatten(1)))
    draws = distribution.expand([5]).sample((8000,))
    assert draws.shape == (8000, 5, 3, 2)
    seen = draws.flatten(0, 1).flatten(1).T.cov()
    spread = covariance.diagonal().sqrt()
    assert ((seen - covariance) / (spread * spread[:, None])).abs().max() < 5 * (2 / 40_000) ** 0.5
    assert not distribution.mean.any()


def test_every_matrix_has_its_own_dense_distribution() -> None:
    model, guide, factors, _ = fitted(mode="sampled")
    for site, weight in weights_of(model).items():
        covariance = dense_covariance(guide, factors, make_batch(), site)
        value = torch.randn(weight.shape)
        expected = MultivariateNormal(torch.zeros(weight.numel()).double(), covariance).log_prob(
            value.flatten().double()
        )
        assert guide.distribution(site).log_prob(value).item() == pytest.approx(float(expected), rel=1e-4)


def test_the_last_layer_alone_is_random() -> None:
    model, guide, _, _ = fitted(mode="sampled", subset="last")
    for site in model.latents.global_sites:
        drawn = guide.distribution(site).sample((2,))
        assert bool(drawn.any()) == (HEAD in site)


def test_stock_predictive() -> None:
    assert_stock_draws_agree(fitted(mode="sampled")[:2], parallel=True)

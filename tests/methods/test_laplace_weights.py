"""Laplace-LoRA: the posterior of the weights, its draws, and stock inference."""

import pytest
import torch
from core_cases import make_batch
from laplace_cases import (
    HEAD,
    dense_covariance,
    fitted,
    plain_log_probs,
    weights_of,
)
from method_cases import assert_same_mean, assert_stock_draws_agree
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from bara_pyro.core.distributions.kronecker import KroneckerNormal
from bara_pyro.core.prediction import predict


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


def test_sampled_weights_through_the_network() -> None:
    model, guide, factors, _ = fitted(mode="sampled")
    batch = make_batch()
    own = predict(model, guide, batch, samples=1000)
    weights = weights_of(model)
    distributions = {
        site: MultivariateNormal(
            torch.zeros(weight.numel()).double(), dense_covariance(guide, factors, batch, site)
        )
        for site, weight in weights.items()
    }
    seen = []
    with torch.no_grad():
        for _ in range(200):
            drawn = {s: w + distributions[s].sample().reshape(w.shape).float() for s, w in weights.items()}
            seen.append(plain_log_probs(model, drawn, batch))
    assert_same_mean(own, torch.stack(seen), least=0.01)


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


@pytest.mark.parametrize("parallel", [True, False])
def test_stock_predictive(parallel: bool) -> None:
    assert_stock_draws_agree(fitted(mode="sampled")[:2], parallel=parallel)

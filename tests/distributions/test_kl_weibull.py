import itertools
import math

import oracles
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from torch.distributions import kl_divergence

from bara_pyro.core.distributions import MeanWeibull
from bara_pyro.core.distributions.kl import unexpanded

KAPPAS = [0.01, 0.02, 0.1, 0.5, math.log(2), 1.0, 1.7, 3.0, 5.0]
PRIORS = [(1.0, 1.0), (0.1, 1.0), (0.5, 2.0), (2.0, 0.5), (7.0, 30.0)]


def f64(value):
    return torch.tensor(value, dtype=torch.float64)


def weibull(mean, kappa):
    return dist.Weibull(mean / torch.exp(torch.lgamma(1 + kappa)), 1 / kappa)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rate", [0.1, 0.3, 1.0, 3.0, 49.0, 1e3])  # 49 * (1 / 49) is not 1 in float64
def test_exactly_zero_where_the_distributions_are_one(rate, dtype):
    one, rate = torch.tensor(1.0, dtype=dtype), torch.tensor(rate, dtype=dtype)
    for prior in [dist.Gamma(one, rate), dist.Exponential(rate), torch.distributions.Gamma(one, rate)]:
        for posterior in [MeanWeibull(1 / rate, one), dist.Weibull(1 / rate, one)]:
            assert kl_divergence(posterior, prior).item() == 0.0


@pytest.mark.parametrize("mean", [1e-8, 1e-3, 0.3, 1.0, 20.0, 1e4])
@pytest.mark.parametrize("kappa", KAPPAS)
def test_against_quadrature(mean, kappa):
    for a, b in PRIORS:
        truth = oracles.weibull_gamma(kappa, mean, a, b)
        prior = dist.Gamma(f64(a), f64(b))
        for posterior in [MeanWeibull(f64(mean), f64(kappa)), weibull(f64(mean), f64(kappa))]:
            assert kl_divergence(posterior, prior).item() == pytest.approx(truth, rel=1e-6, abs=1e-12)
    truth = oracles.weibull_gamma(kappa, mean, 1.0, 0.4)
    posterior = MeanWeibull(f64(mean), f64(kappa))
    assert kl_divergence(posterior, dist.Exponential(f64(0.4))).item() == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("learned", [False, True])  # a prior that is learned takes another way
def test_gradients_against_finite_differences_and_paper_formula(learned):
    mean, kappa = f64([0.2, 1.0, 3.0]).requires_grad_(), f64([0.05, 0.7, 4.0]).requires_grad_()
    a, b = f64(0.5).requires_grad_(learned), f64(2.0).requires_grad_(learned)
    # Both the plain prior and the one expanded by a plate, whose gradients take another way.
    for shape in [(), (3,)]:
        assert torch.autograd.gradcheck(
            lambda m, k, a, b, shape=shape: kl_divergence(MeanWeibull(m, k), dist.Gamma(a, b).expand(shape)),
            (mean, kappa, a, b),
        )
    kl = kl_divergence(MeanWeibull(mean, kappa), dist.Gamma(a, b)).sum()
    by_mean, by_kappa = torch.autograd.grad(kl, (mean, kappa))
    torch.testing.assert_close(by_mean, (b - a / mean).detach())
    euler = 0.5772156649015329
    torch.testing.assert_close(by_kappa, (a * (euler + torch.digamma(1 + kappa)) - 1 / kappa).detach())


@pytest.mark.parametrize("mean", [1e-8, 1e4])
@pytest.mark.parametrize("kappa", [0.01, 5.0])
@pytest.mark.parametrize(("a", "b"), PRIORS)
def test_float32_extremes(mean, kappa, a, b):
    m, k = torch.tensor(mean, requires_grad=True), torch.tensor(kappa, requires_grad=True)
    kl = kl_divergence(MeanWeibull(m, k), dist.Gamma(torch.tensor(a), torch.tensor(b)))
    assert kl.item() == pytest.approx(oracles.weibull_gamma(kappa, mean, a, b), rel=1e-5)
    assert all(gradient.isfinite() for gradient in torch.autograd.grad(kl, (m, k)))


def test_shapes_and_wrappers():
    q, p = MeanWeibull(torch.rand(4, 5, 3) + 0.1, torch.rand(4, 5, 3) + 0.1), dist.Gamma(0.5, 2.0)
    plain = kl_divergence(q, p)
    assert plain.shape == (4, 5, 3)
    torch.testing.assert_close(kl_divergence(q, p.expand([4, 5, 3])), plain)
    vector = dist.Gamma(torch.full((3,), 0.5), torch.full((3,), 2.0))
    torch.testing.assert_close(kl_divergence(q, vector.expand([4, 5, 3])), plain)
    both = kl_divergence(q.to_event(1), p.expand([4, 5, 3]).to_event(1))
    torch.testing.assert_close(both, plain.sum(-1))
    mask = torch.rand(4, 5) > 0.5
    masked = kl_divergence(q.to_event(1).mask(mask), p.expand([4, 5, 3]).to_event(1).mask(mask))
    torch.testing.assert_close(masked, plain.sum(-1) * mask)
    small = MeanWeibull(torch.tensor(0.4), torch.tensor(0.8))
    wide = kl_divergence(small.expand([4, 3]), p.expand([4, 3]))
    torch.testing.assert_close(wide, kl_divergence(small, p).expand(4, 3))


def pair(prior):
    """Return a model and a guide with one latent, weighted and masked; nothing is observed."""
    mask = torch.tensor([[True, True, False], [True, False, False]])
    mean, kappa = torch.full((2, 3, 2), 0.4), torch.full((2, 3, 2), 0.8)

    def sample(distribution):
        plates = pyro.plate("data", 2, dim=-2), pyro.plate("tokens", 3, dim=-1)
        with plates[0], plates[1], pyro.poutine.mask(mask=mask), pyro.poutine.scale(scale=0.25):
            pyro.sample("theta", distribution.to_event(1))

    return lambda: sample(prior.expand([2, 3, 2])), lambda: sample(MeanWeibull(mean, kappa))


def test_elbo_is_the_closed_form_and_not_an_estimate():
    model, guide = pair(dist.Gamma(0.5, 2.0))
    elbo = TraceMeanField_ELBO()
    first, second = elbo.loss(model, guide), elbo.loss(model, guide)
    assert first == second
    assert first == pytest.approx(0.25 * 3 * 2 * oracles.weibull_gamma(0.8, 0.4, 0.5, 2.0), rel=1e-5)


def test_the_guard_above_sees_a_missing_divergence():
    model, guide = pair(dist.HalfCauchy(torch.tensor(1.0)))
    elbo = TraceMeanField_ELBO()
    assert elbo.loss(model, guide) != elbo.loss(model, guide)


@pytest.mark.parametrize("varies", [(4, 3), (4, 1), (1, 3), (1, 1)])
def test_numbers_expanded_along_some_axes_give_the_divergence_of_all(varies: tuple[int, int]) -> None:
    """An axis along which the prior's numbers are expanded is read once, and the others in full."""
    torch.manual_seed(0)
    a, b = (0.5 + torch.rand(varies, dtype=torch.float64) for _ in range(2))
    q = MeanWeibull(*(0.5 + torch.rand(2, 4, 3, dtype=torch.float64)))
    got = kl_divergence(q, dist.Gamma(a.expand(4, 3), b.expand(4, 3)))
    for i, j in itertools.product(range(4), range(3)):
        numbers = (values.expand(4, 3)[i, j].item() for values in (q.kappa, q.mean, a, b))
        assert got[i, j].item() == pytest.approx(oracles.weibull_gamma(*numbers), rel=1e-6)
    kept = unexpanded(a.expand(4, 3))
    assert kept.shape == varies
    assert torch.equal(kept.expand(4, 3), a.expand(4, 3))

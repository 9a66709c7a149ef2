import oracles
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import kl_divergence

from bara_pyro.core.distributions import MeanWeibull
from bara_pyro.core.distributions.moments import CROSS_ENTROPIES, MOMENTS, PAIRS

LAWS = {name: getattr(dist, name, MeanWeibull) for name in oracles.FAMILIES}
POSTERIORS = {
    "MeanWeibull": [(0.3, 0.1), (1.0, 0.7), (2.0, 2.5)],
    "Weibull": [(0.3, 8.0), (1.0, 1.3), (2.0, 0.4)],
    "Gamma": [(0.5, 1.0), (1.0, 3.0), (30.0, 10.0)],
    "LogNormal": [(-2.0, 0.1), (0.0, 1.0), (1.0, 1.4)],
}
PRIORS = {
    "Gamma": [(1.0, 1.0), (0.5, 2.0)],
    "Exponential": [(1.0,), (0.3,)],
    "HalfNormal": [(1.0,), (2.5,)],
    "LogNormal": [(0.0, 1.0), (-1.0, 0.5)],
    "InverseGamma": [(2.0, 1.0), (0.7, 0.3)],
}
WITHOUT = {("MeanWeibull", "InverseGamma"), ("Weibull", "InverseGamma"), ("Gamma", "InverseGamma")}
ANALYTIC = [(q, p) for q in POSTERIORS for p in PRIORS if (q, p) not in WITHOUT]


def build(name, parameters):
    return LAWS[name](*(torch.tensor(value, dtype=torch.float64) for value in parameters))


@pytest.mark.parametrize(("posterior", "prior"), ANALYTIC)
def test_against_quadrature(posterior, prior):
    for q in POSTERIORS[posterior]:
        for p in PRIORS[prior]:
            truth = oracles.divergence(oracles.FAMILIES[posterior](*q), oracles.FAMILIES[prior](*p))
            kl = kl_divergence(build(posterior, q), build(prior, p)).item()
            assert kl == pytest.approx(truth, rel=1e-6, abs=1e-10)
            assert kl >= -1e-12


@pytest.mark.parametrize(("posterior", "prior"), ANALYTIC)
def test_through_wrappers(posterior, prior):
    q, p = build(posterior, POSTERIORS[posterior][1]), build(prior, PRIORS[prior][1])
    expected = kl_divergence(q, p)
    wide = kl_divergence(q.expand([4, 3]).to_event(1), p.expand([4, 3]).to_event(1))
    torch.testing.assert_close(wide, 3 * expected.expand(4))


@pytest.mark.parametrize(("posterior", "prior"), ANALYTIC)
def test_gradients(posterior, prior):
    q = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in POSTERIORS[posterior][1]]
    p = build(prior, PRIORS[prior][1])
    assert torch.autograd.gradcheck(lambda *q: kl_divergence(LAWS[posterior](*q), p), q)


@pytest.mark.parametrize(("posterior", "prior"), sorted(WITHOUT))
def test_infinite_divergences_are_not_registered(posterior, prior):
    with pytest.raises(NotImplementedError):
        kl_divergence(build(posterior, POSTERIORS[posterior][0]), build(prior, PRIORS[prior][0]))


@pytest.mark.parametrize("family", list(MOMENTS))
def test_moments_of_each_family(family):
    """The parts, by Monte Carlo: an error in two of them could cancel in a divergence."""
    name = family.__name__
    q = build(name, POSTERIORS[name][1])
    moments, t = MOMENTS[family](q), q.sample((200_000,))
    log_t = t.log()
    for values, truth in [
        (-q.log_prob(t), moments.entropy),
        (log_t, moments.mean_log),
        ((log_t - moments.mean_log).square(), moments.var_log()),
        (t, moments.log_power(1).exp()),
        (t.sqrt(), moments.log_power(0.5).exp()),
    ]:
        assert abs(values.mean() - truth) < 4 * values.std() / len(t) ** 0.5


def test_table_is_complete():
    assert set(PAIRS) <= {(q, p) for q in MOMENTS for p in CROSS_ENTROPIES}
    assert len(set(PAIRS)) == len(PAIRS)


@pytest.mark.parametrize("prior", ["Gamma", "HalfNormal", "Exponential"])
def test_a_narrow_gamma_in_float32(prior):
    """Of a standard deviation of a hundredth of its mean: values, and how they change."""
    found = {}
    for dtype in (torch.float32, torch.float64):
        mean, kappa = (torch.tensor(value, dtype=dtype, requires_grad=True) for value in (20.0, 0.01))
        q = dist.Gamma(kappa**-2, 1 / (mean * kappa**2))
        p = LAWS[prior](*(torch.tensor(value, dtype=dtype) for value in PRIORS[prior][0]))
        power = MOMENTS[torch.distributions.Gamma](q).log_power(2)
        found[dtype] = [
            (kl_divergence(q, p), *torch.autograd.grad(kl_divergence(q, p), mean, retain_graph=True)),
            (power, *torch.autograd.grad(power, (mean, kappa))),
        ]
    for single, double in zip(*found.values(), strict=True):
        assert [float(value.detach()) for value in single] == pytest.approx(
            [float(value.detach()) for value in double], rel=2e-3
        )

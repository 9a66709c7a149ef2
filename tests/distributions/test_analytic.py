import itertools

import pyro.distributions as dist
import pytest
import torch
from torch.distributions import kl_divergence, register_kl
from torch.distributions.kl import _KL_MEMOIZE, _KL_REGISTRY

from bara_pyro.core.distributions import MeanWeibull, has_analytic_kl

ONE = torch.ones(2, 3)
LAWS = [
    MeanWeibull(ONE, ONE),
    dist.Weibull(ONE, ONE),
    dist.Weibull(ONE, 2 * ONE),
    dist.Gamma(ONE, ONE),
    dist.Exponential(ONE),
    dist.LogNormal(ONE, ONE),
    dist.HalfNormal(ONE),
    dist.HalfCauchy(ONE),
    dist.InverseGamma(ONE, ONE),
    dist.Beta(ONE, ONE),
    dist.Normal(ONE, ONE),
    dist.Poisson(ONE),
    dist.Delta(ONE),
]
MASK = torch.tensor([True, False])
WRAPPERS = {
    "plain": lambda d: d,
    "event": lambda d: d.to_event(1),
    "events": lambda d: d.to_event(2),
    "mask": lambda d: d.to_event(1).mask(MASK),
    "no mask": lambda d: d.to_event(1).mask(False),
    "expand": lambda d: d.expand([5, 2, 3]).to_event(1),
    "wrapped expand": lambda d: dist.torch_distribution.ExpandedDistribution(d, [5, 2, 3]),
}


def computes(q, p):
    try:
        kl_divergence(q, p)
    except NotImplementedError:
        return False
    return True


@pytest.mark.parametrize("outer_q", WRAPPERS)
@pytest.mark.parametrize("outer_p", WRAPPERS)
def test_says_what_kl_divergence_does(outer_q, outer_p):
    for q, p in itertools.product(LAWS, LAWS):
        if isinstance(q, dist.Delta) and not p.support.check(q.v).all():
            continue
        wrapped = WRAPPERS[outer_q](q), WRAPPERS[outer_p](p)
        assert has_analytic_kl(*wrapped) == computes(*wrapped), wrapped


def test_paper_pair_and_a_missing_one():
    q = MeanWeibull(ONE, ONE).to_event(1)
    assert has_analytic_kl(q, dist.Gamma(ONE, ONE).to_event(1))
    assert not has_analytic_kl(q, dist.HalfCauchy(ONE).to_event(1))


def test_sees_a_pair_registered_later():
    class Fresh(dist.HalfCauchy):
        pass

    q, p = MeanWeibull(ONE, ONE), Fresh(ONE)
    assert not has_analytic_kl(q, p)
    register_kl(MeanWeibull, Fresh)(lambda q, p: q.mean)
    try:
        assert has_analytic_kl(q, p)
    finally:
        del _KL_REGISTRY[MeanWeibull, Fresh]
        _KL_MEMOIZE.clear()
    assert not has_analytic_kl(q, p)

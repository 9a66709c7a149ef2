"""Quantiles of a guide's posterior, against SciPy and against the guide's own draws."""

import pytest
import torch
from core_cases import bara_pair, make_batch
from scipy import stats
from torch.testing import assert_close

from bara_pyro.core.posterior import Posterior, PosteriorMedian
from bara_pyro.errors import ConfigError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.gamma import GammaGuide
from bara_pyro.guides.lognormal import LogNormalGuide
from bara_pyro.guides.weibull import WeibullGuide

LEVELS = [0.05, 0.5, 0.9]


def weibull(mean, kappa, level):
    scale = mean / stats.weibull_min(1 / kappa).mean()
    return stats.weibull_min(1 / kappa, scale=scale).ppf(level)


def gamma(mean, kappa, level):
    return stats.gamma(kappa**-2, scale=mean * kappa**2).ppf(level)


def lognormal(mean, kappa, level):
    deviation = torch.tensor(kappa).square().log1p().sqrt().numpy()
    return stats.lognorm(deviation, scale=mean * torch.tensor(-(deviation**2) / 2).exp().numpy()).ppf(level)


@pytest.mark.parametrize(
    ("kind", "expected"), [(WeibullGuide, weibull), (GammaGuide, gamma), (LogNormalGuide, lognormal)]
)
def test_quantiles_of_phi_are_those_of_scipy(kind: type, expected) -> None:
    _, guide = bara_pair(guide=kind, seed=0, move=0.5)
    raw = torch.nn.functional.softplus(guide.sites["phi"].weight + guide.start).detach()
    mean, kappa = raw.double().chunk(2, -1)
    kappa = kappa.clamp_max(1.0)
    found = guide.quantiles(LEVELS, make_batch())["phi"]
    for level, values in zip(LEVELS, found.double(), strict=True):
        assert_close(
            values, torch.from_numpy(expected(mean.numpy(), kappa.numpy(), level)), rtol=1e-4, atol=0
        )


def test_theta_has_its_medians_where_lower_layers_have_theirs() -> None:
    """Half of the draws of a site lie below its median once the layers below are held at theirs."""
    model, guide = bara_pair(seed=0, scale=0.3, move=0.5)
    batch = make_batch()
    medians = guide.median(batch)
    assert {*medians} == {*model.latents.sites}
    top = "theta/lm_head"

    class Held(Posterior):
        def value(self, name, fn):
            if name != top:
                return PosteriorMedian(self.guide).value(name, fn)
            self.drawn = fn.sample((4000,))
            return medians[name]

    with torch.no_grad(), Held(guide) as held:
        model.forward(batch.unlabelled())
    share = (held.drawn < medians[top]).double().mean(0)
    assert (share - 0.5).abs().max() < 5 * 0.5 / 4000**0.5


def test_the_quantiles_of_a_point_are_the_point() -> None:
    _, guide = bara_pair(guide=DeltaGuide, seed=0)
    low, high = guide.quantiles([0.1, 0.9], make_batch())["phi"]
    assert_close(low, high)


def test_rows_are_needed_for_theta_only() -> None:
    _, guide = bara_pair(seed=0, latent="phi", move=0.5)
    assert_close(guide.quantiles(LEVELS), guide.quantiles(LEVELS, make_batch()))
    with pytest.raises(ConfigError, match="give a batch"):
        bara_pair(seed=0)[1].median()


def test_a_level_out_of_range_is_refused() -> None:
    _, guide = bara_pair(seed=0)
    with pytest.raises(ConfigError, match=r"1\.5"):
        guide.quantiles([1.5], make_batch())

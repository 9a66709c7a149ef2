"""Weighed draws of a guide that is off are draws of the posterior, by quadrature; checks that use them."""

import math

import pytest
import torch
from posterior_cases import KAPPA, MEAN, Grid, one_gate, weibull
from scipy import stats

from bara_pyro.diagnostics.posterior.comparison import compare_with_reference
from bara_pyro.diagnostics.posterior.importance import GOOD_K, weighed_draws
from bara_pyro.diagnostics.posterior.joint import draw_latents
from bara_pyro.diagnostics.posterior.reference import reference_from
from bara_pyro.diagnostics.posterior.sbc import sbc, svi_sampler
from bara_pyro.errors import ConfigError
from bara_pyro.guides.delta import DeltaGuide

OFF = (0.75 * MEAN, KAPPA)  # of a guide that is too low, and too narrow for it


def posterior_cdf(grid: Grid, at: torch.Tensor) -> torch.Tensor:
    """The posterior's distribution function of the gate, by the trapezoid rule."""
    density = grid.posterior()
    cdf = torch.cat([torch.zeros(1), torch.cumulative_trapezoid(density, grid.u)])
    places = torch.searchsorted(grid.u, at.double().log()).clamp(1, len(grid.u) - 1)
    share = (at.double().log() - grid.u[places - 1]) / (grid.u[places] - grid.u[places - 1])
    return torch.lerp(cdf[places - 1].double(), cdf[places].double(), share)


def test_weighed_draws_have_the_posteriors_distribution() -> None:
    model, batch = one_gate()
    grid, guide = Grid(model, batch), weibull(model, *OFF)
    found = weighed_draws(model, guide, batch, samples=1500, candidates=6000, seed=3)
    assert found.k_hat <= GOOD_K
    assert 300 < found.effective < 6000
    gates = found.draws.values["phi"].flatten()
    # Two sources of chance: which candidates there are, and which of them were kept.
    noise = 1.63 * math.sqrt(1 / found.effective + 1 / 1500)  # 1 % of Kolmogorov's distribution
    ks = float(stats.kstest(posterior_cdf(grid, gates).numpy(), "uniform").statistic)
    assert ks < noise
    plain = draw_latents(model, guide, batch, 1500, 3).values["phi"].flatten()
    assert float(stats.kstest(posterior_cdf(grid, plain).numpy(), "uniform").statistic) > 3 * noise


def test_what_is_kept_belongs_together() -> None:
    model, batch = one_gate()
    found = weighed_draws(model, weibull(model), batch, samples=40, candidates=400).draws
    assert len({float(x) for x in found.values["phi"].flatten()}) < 41
    log_prior = -found.values["phi"].flatten().double()  # Gamma(1, 1)
    torch.testing.assert_close(found.log_prior, log_prior, rtol=0, atol=1e-5)
    labels = batch.labels.expand(40, -1)[..., None]
    by_row = found.log_probs.gather(2, labels).squeeze(2).sum(1)
    torch.testing.assert_close(found.log_likelihood, by_row, rtol=0, atol=1e-4)


def test_weights_that_cannot_be_relied_on_say_so() -> None:
    model, batch = one_gate()
    found = weighed_draws(model, weibull(model, 0.3 * MEAN, 0.1), batch, samples=20, candidates=2000)
    assert found.k_hat > GOOD_K


def test_points_and_numbers_that_are_refused() -> None:
    model, batch = one_gate()
    with pytest.raises(ConfigError, match="is a point estimate"):
        weighed_draws(model, DeltaGuide(model), batch, samples=5)
    with pytest.raises(ConfigError, match="samples is 0"):
        weighed_draws(model, weibull(model), batch, samples=0)


@pytest.mark.slow
def test_a_guide_that_is_off_is_beside_the_reference_once_weighed() -> None:
    """The reference is drawn from the quadrature: no chain, so that only draws differ.

    Draws of one distribution are further apart than the noise that is told in one case of twenty: three
    cases of six in one of five hundred.
    """
    model, batch = one_gate()
    grid = Grid(model, batch)
    guide = weibull(model, *OFF)
    told, widths = 0, []
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        picked = torch.multinomial(grid.posterior(), 3000, replacement=True, generator=generator)
        gates = grid.u[picked].exp().float().reshape(-1, 1, 1)
        reference = reference_from(model, batch, {"phi": gates}, 1, 0, (1.0,))
        plain, weighed = (
            compare_with_reference(model, guide, reference, batch, samples=1500, seed=seed, weighed=weighed)
            for weighed in (False, True)
        )
        assert plain.gates[0].sd_ratio < 0.9
        widths.append(weighed.gates[0].sd_ratio)
        assert plain.gates[0].ks > 3 * plain.gates[0].ks_noise
        assert weighed.gates[0].ks_noise > plain.gates[0].ks_noise  # fewer draws than there seem to be
        assert weighed.largest_difference < plain.largest_difference
        told += weighed.gates[0].ks > weighed.gates[0].ks_noise
    assert told < 3
    assert sum(widths) / len(widths) == pytest.approx(1, abs=0.08)


@pytest.mark.slow
def test_calibration_of_a_guide_that_ignores_the_answers_once_weighed() -> None:
    """Mean 1 and noise level 1 are the prior, whose draws explain answers badly: the log-likelihood tells."""
    model, batch = one_gate()

    def calibration(weighed: bool) -> float:
        sampler = svi_sampler(model, weibull(model, 1.0, 1.0), steps=1, lr=1e-9, draws=15, weighed=weighed)
        return min(one.p for one in sbc(model, batch, sampler, simulations=40, seed=2).uniformity())

    assert calibration(weighed=True) > 0.01
    assert calibration(weighed=False) < 0.001

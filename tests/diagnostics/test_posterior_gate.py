"""The gate that every guide passes: calibration in simulations, evidence, and NUTS, each in miniature.

`PYTHONPATH=tests/core python tests/diagnostics/test_posterior_gate.py` writes what NUTS finds, in minutes.
"""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from posterior_cases import TWO_TOKENS, Grid, one_gate

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.posterior.importance import importance_estimate
from bara_pyro.diagnostics.posterior.joint import draw_latents, flat_gates
from bara_pyro.diagnostics.posterior.reference import nuts
from bara_pyro.diagnostics.posterior.sbc import fit_guide, sbc, svi_sampler, too_sure
from bara_pyro.guides.families import FAMILIES

FACTORS = [name for name in FAMILIES if name not in ("delta", "weibull-coupled")]  # a point has no width
STORED = Path(__file__).parent / "nuts.json"
L, N = 15, 24


def fitted(name: str, model: AdaptedLM, batch: Batch, steps: int = 400) -> SiteGuide:
    """A guide of that name after a short fit."""
    torch.manual_seed(0)
    guide = FAMILIES[name](model)
    fit_guide(model, guide, batch, steps=steps, lr=0.1)
    return guide


def two_levels() -> tuple[AdaptedLM, Batch]:
    """A global gate and a local one a token, tied by their product."""
    return one_gate(TWO_TOKENS, repeats=1, latent="phi*theta")


@pytest.mark.slow
@pytest.mark.parametrize("name", FACTORS)
def test_evidence_and_moments_are_those_of_quadrature(name: str) -> None:
    model, batch = one_gate()
    grid, guide = Grid(model, batch), fitted(name, model, batch)
    found = importance_estimate(model, guide, batch, samples=600)
    assert found.k_hat < 1  # the Gamma guide has a lighter tail than the posterior
    assert abs(found.evidence - grid.log_evidence) < 4 * found.evidence_error
    assert 0 <= grid.log_evidence - found.elbo < 0.1 + 4 * found.elbo_error
    mean, sd = grid.moments()
    draws = flat_gates(draw_latents(model, guide, batch, 4000, 1).values)[:, 0].double()
    assert abs(float(draws.mean()) - mean) < 0.25 * sd
    assert 0.8 < float(draws.std()) / sd < 1.25


@pytest.mark.slow
def test_ranks_lean_to_no_side_and_are_not_too_extreme() -> None:
    """Mean and variance of the ranks of the truth, each with the error that N simulations have."""
    model, batch = one_gate(TWO_TOKENS)
    sampler = svi_sampler(model, fitted("weibull", model, batch, 100), steps=80, lr=0.1, draws=L)
    gate, likelihood = sbc(model, batch, sampler, simulations=N).uniformity()
    error = 4 * math.sqrt(1 / (12 * N))
    assert abs(gate.rank - 0.5) < error
    assert abs(likelihood.rank - 0.5) < error
    extreme = 4 * math.sqrt(0.8 / N)  # the variance of (12 (u - 1/2)^2) is 4/5
    assert abs(gate.spread - 1) < extreme
    sure = sbc(model, batch, too_sure(sampler), simulations=N).uniformity()[0]
    assert sure.spread > 1 + extreme  # the control


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FACTORS, "weibull-coupled"])
def test_a_gate_over_gates_is_no_further_from_nuts_than_it_was(name: str) -> None:
    """Its factors are independent, or see each other's draw alone: too narrow, by no more than is known."""
    model, batch = two_levels()
    stored = json.loads(STORED.read_text())
    guide = fitted(name, model, batch)
    draws = flat_gates(draw_latents(model, guide, batch, 2000, 1).values).double()
    assert draws.shape[1] == len(stored["mean"])
    mean, sd = torch.tensor(stored["mean"]), torch.tensor(stored["sd"])
    away = ((draws.mean(0) - mean) / sd).abs()
    width = draws.std(0) / sd
    assert float(away.max()) < stored["most_away"]
    assert float(width.min()) > stored["least_width"]
    assert float(width.max()) < 1.3


def write_nuts() -> None:
    """Write moments of a long chain, and how far the guides are allowed to be from them."""
    model, batch = two_levels()
    found = nuts(model, batch, samples=500, warmup=100, seed=0)
    told = {
        "mean": [round(value, 4) for value in found.gates.mean(0).tolist()],
        "sd": [round(value, 4) for value in found.gates.std(0).tolist()],
        "ess": [round(value) for value in found.ess.tolist()],
        "r_hat": [round(value, 4) for value in found.r_hat.tolist()],
        "names": list(found.names),
        "most_away": 0.5,
        "least_width": 0.4,
    }
    STORED.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(write_nuts())

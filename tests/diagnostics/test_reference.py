"""The reference posterior: NUTS against quadrature, its guards, and the comparison of a guide with it."""

import math
from dataclasses import replace

import pytest
import torch
from core_cases import ROWS, make_batch
from gate_cases import ONE_TOKEN, forward_with_gates
from posterior_cases import KAPPA, MEAN, PATH, Grid, one_gate, weibull
from scipy import stats
from torch.testing import assert_close

from bara_pyro.diagnostics.posterior.reference import Reference, compare_with_reference, nuts, reference_from
from bara_pyro.errors import ConfigError, DataError, TrainingError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA
from bara_pyro.models.lora import LoRA

SHORT = {"samples": 8, "warmup": 4, "max_tree_depth": 3}


def exact(count: int = 1200) -> tuple[BaRA, object, Grid, Reference]:
    """A reference of independent posterior draws, by quadrature."""
    model, batch = one_gate()
    grid = Grid(model, batch)
    return model, batch, grid, reference_from(model, batch, {"phi": grid.draws(count)})


@pytest.mark.slow
def test_nuts_finds_the_posterior() -> None:
    model, batch = one_gate()
    mean, sd = Grid(model, batch).moments()
    state = torch.random.get_rng_state()
    found = nuts(model, batch, samples=150, warmup=60, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())
    gates, ess = found.gates[:, 0], float(found.ess[0])
    assert found.gates.shape == (150, 1)
    assert ess > 30
    assert found.r_hat[0] < 1.1
    assert found.divergences == 0
    assert 0.6 < found.acceptance[0] <= 1
    assert abs(float(gates.mean()) - mean) < 4 * sd / math.sqrt(ess)
    # The standard error of a standard deviation is about sd / sqrt(2 ess) for light tails.
    assert abs(float(gates.std()) - sd) < 4 * sd / math.sqrt(2 * ess)
    psi = gates[:1].float()[:, None, None].expand(len(batch), 1, 1)
    assert_close(found.log_probs[0], forward_with_gates(model, batch, psi).double(), rtol=0, atol=1e-5)
    assert found.names == (f"phi[{PATH}, 0]",)


def test_nuts_with_local_gates_and_two_chains() -> None:
    model, batch = one_gate(ONE_TOKEN, repeats=1, latent="phi*theta")
    found = nuts(model, batch, chains=2, **SHORT)
    assert found.chains == 2
    assert len(found.acceptance) == 2
    assert found.names == (f"phi[{PATH}, 0]", *(f"theta/{PATH}[{row}, 0, 0]" for row in "abcd"))
    assert {name: value.shape for name, value in found.values.items()} == {
        "phi": (16, 1, 1),
        f"theta/{PATH}": (16, 4, 1, 1),
    }
    assert (found.gates > 0).all()
    psi = found.values["phi"][:, None] * found.values[f"theta/{PATH}"]
    for s in (0, 15):
        assert_close(found.log_probs[s], forward_with_gates(model, batch, psi[s]).double(), rtol=0, atol=1e-5)
    assert torch.equal(found.gates[:8], nuts(model, batch, **SHORT).gates)  # the first chain, again
    assert not torch.equal(found.gates[:8], found.gates[8:])


def test_what_nuts_refuses() -> None:
    model, batch = one_gate()
    with pytest.raises(ConfigError, match=r"1 gates exceed max_latents=0.*raise max_latents"):
        nuts(model, batch, max_latents=0)
    with pytest.raises(ConfigError, match="samples=7"):
        nuts(model, batch, samples=7)
    lora = LoRA(model.backbone, len(batch))
    with pytest.raises(ConfigError, match="LoRA has no gates"):
        nuts(lora, batch)
    with pytest.raises(DataError, match="no labels"):
        nuts(model, replace(batch, labels=None))
    for options, said in (
        ({"num_data": 24}, "count each row 2 times"),
        ({"beta_phi": 0.1}, "weight 0.1"),
        ({"beta_theta": 0.0, "latent": "phi*theta"}, "weight 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            nuts(*one_gate(ROWS, **options))
    with pytest.raises(DataError, match="different lengths"):
        nuts(*one_gate(latent="phi*theta"))
    with pytest.raises(TrainingError, match="never moved"):
        reference_from(model, batch, {"phi": torch.ones(10, 1, 1)})


def test_statistics_of_chains() -> None:
    model, batch, grid, found = exact(400)
    assert found.ess[0] == pytest.approx(400, rel=0.4)  # independent draws
    assert found.r_hat[0] < 1.03
    apart = torch.cat([grid.draws(200), 3 * grid.draws(200, seed=1)])
    assert reference_from(model, batch, {"phi": apart}, chains=2).r_hat[0] > 1.2
    assert reference_from(model, batch, {"phi": apart}).r_hat[0] > 1.2  # one chain: its halves
    sticky = grid.draws(40).repeat_interleave(10, dim=0)
    assert reference_from(model, batch, {"phi": sticky}).ess[0] < 130


def test_a_guide_beside_the_posterior() -> None:
    model, batch, grid, reference = exact()
    mean, sd = grid.moments()
    found = compare_with_reference(model, weibull(model), reference, batch, samples=1200)
    (gate,) = found.gates
    distribution = stats.weibull_min(1 / KAPPA, scale=MEAN / math.gamma(1 + KAPPA))
    # Of thousands of independent draws: mean and sd to 4 sd / sqrt(n).
    assert gate.mean == pytest.approx(mean, abs=4 * sd / math.sqrt(1200))
    assert gate.guide_mean == pytest.approx(MEAN, abs=4 * distribution.std() / math.sqrt(1200))
    assert gate.sd_ratio == pytest.approx(distribution.std() / sd, rel=0.12)
    assert (gate.guide_low, gate.guide_high) == pytest.approx(distribution.interval(0.9), rel=0.12)
    # The exact distances, from the two distribution functions on the grid.
    cdf = torch.cumulative_trapezoid(grid.posterior(), grid.u)
    gap = (cdf - torch.as_tensor(distribution.cdf(grid.u[1:].exp()))).abs()
    assert gate.ks == pytest.approx(float(gap.max()), abs=gate.ks_noise)
    assert gate.wasserstein == pytest.approx(
        float(torch.trapezoid(gap, grid.u[1:].exp())) / sd, abs=2.5 / math.sqrt(1200)
    )
    weight = grid.posterior()[:, None, None] * grid.log_probs.exp()
    truth = torch.trapezoid(weight, grid.u, dim=0).repeat(3, 1)
    assert_close(found.reference_probs, truth, rtol=0, atol=4 * 0.5 / math.sqrt(1200))
    assert found.largest_difference == pytest.approx(
        100 * float((found.guide_probs - found.reference_probs).abs().max())
    )
    assert gate.gate == f"phi[{PATH}, 0]"


def test_a_posterior_beside_itself_and_one_that_is_too_sure() -> None:
    model, batch, _, reference = exact()
    again = weibull(model, MEAN, KAPPA)
    wide = compare_with_reference(model, again, reference, batch, samples=500, seed=1)
    itself = reference_from(model, batch, {"phi": _draws(model, again, 1000, seed=5)})
    same = compare_with_reference(model, again, itself, batch, samples=1000, seed=6)
    assert same.gates[0].ks < same.gates[0].ks_noise
    assert same.gates[0].sd_ratio == pytest.approx(1, rel=0.13)
    assert same.largest_difference < 4
    sure = compare_with_reference(model, weibull(model, MEAN, KAPPA / 4), reference, batch, samples=500)
    assert sure.gates[0].sd_ratio < 0.5
    assert sure.gates[0].ks > 3 * sure.gates[0].ks_noise
    assert sure.gates[0].ks > wide.gates[0].ks
    point = compare_with_reference(model, DeltaGuide(model), reference, batch, samples=20)
    assert point.gates[0].sd_ratio == 0
    # From a point all of the mass has to be carried there.
    gates = reference.gates[:, 0]
    away = float((gates - point.gates[0].guide_mean).abs().mean() / gates.std())
    assert point.gates[0].wasserstein == pytest.approx(away, rel=1e-4)


def _draws(model: BaRA, guide: WeibullGuide, count: int, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return guide.get_posterior("phi", model.phi_prior).sample((count,)).detach()


def test_a_reference_of_other_rows_is_refused() -> None:
    model, _, _, reference = exact(20)
    other, batch = one_gate(repeats=1)
    with pytest.raises(DataError, match="1 gates and 12 rows, the model 1 and 4"):
        compare_with_reference(other, WeibullGuide(other), reference, batch)
    with pytest.raises(ConfigError, match="num_data=12 for 4 rows"):
        compare_with_reference(model, WeibullGuide(model), reference, make_batch())

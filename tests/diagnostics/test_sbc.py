"""Simulation-based calibration: exact draws pass, draws that are too sure fail, and so does the prior."""

import math
from collections.abc import Callable, Mapping
from itertools import product

import numpy as np
import pytest
import torch
from core_cases import make_batch
from posterior_cases import PATH, TWO_TOKENS, Grid, one_gate
from scipy import stats
from torch import Tensor

from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.posterior.sbc import (
    LOG_LIKELIHOOD,
    Calibration,
    rank_of_truth,
    sbc,
    simulate,
    svi_sampler,
    too_sure,
)
from bara_pyro.diagnostics.posterior.uniformity import band, ecdf, ecdf_test
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.lora import LoRA

L = 15
N = 80
GATE = f"phi[{PATH}, 0]"


def by_quadrature(grid: Grid) -> object:
    """Exact, independent posterior draws given simulated labels."""

    def sample(batch: Batch, seed: int) -> Mapping[str, Tensor]:
        return {"phi": grid.draws(L, batch.labels, seed=seed % 2**31)}

    return sample


def from_prior(batch: Batch, seed: int) -> Mapping[str, Tensor]:
    generator = torch.Generator().manual_seed(seed % 2**31)
    return {"phi": torch.empty(L, 1, 1).exponential_(generator=generator)}


def test_exact_draws_pass_and_controls_fail() -> None:
    model, batch = one_gate(TWO_TOKENS)
    grid = Grid(model, batch, TWO_TOKENS, points=150)
    exact = by_quadrature(grid)
    found = sbc(model, batch, exact, simulations=N)
    assert found.names == (GATE, LOG_LIKELIHOOD)
    assert found.ranks.shape == (N, 2)
    assert found.uneven() == ()
    again = sbc(model, batch, exact, simulations=4)
    assert torch.equal(again.ranks, found.ranks[:4])
    sure = sbc(model, batch, too_sure(exact), simulations=N)
    assert GATE in sure.uneven()
    assert sure.uniformity()[0].spread > 1.5  # extreme ranks
    # The prior in place of the posterior: the gate's ranks are uniform, those of the likelihood are not.
    ignorant = sbc(model, batch, from_prior, simulations=N)
    assert ignorant.uneven() == (LOG_LIKELIHOOD,)


@pytest.mark.parametrize("quantities", [1, 500])
def test_however_many_quantities_there_are_the_worst_is_told(quantities: int) -> None:
    """A p-value has a smallest one, and what is small enough for all together has to be above it."""
    names = tuple(f"gate {i}" for i in range(quantities))
    lowest = Calibration(names, torch.zeros(50, quantities, dtype=torch.long), draws=63)
    assert lowest.uneven() == names
    generator = torch.Generator().manual_seed(0)
    even = Calibration(names, torch.randint(64, (50, quantities), generator=generator), draws=63)
    assert len(even.uneven()) <= 1


@pytest.mark.parametrize("draws", [1, 63])
def test_the_spread_of_uniform_ranks_is_one(draws: int) -> None:
    found = Calibration(("gate",), torch.arange(draws + 1)[:, None], draws).uniformity()[0]
    assert found.spread == pytest.approx(1)
    assert found.rank == pytest.approx(0.5)


def test_a_rank_is_the_number_of_draws_below_the_truth() -> None:
    """By draws that are all below it and all above it."""
    model, batch = one_gate(TWO_TOKENS)

    def constant(value: float) -> Callable[[Batch, int], Mapping[str, Tensor]]:
        return lambda _, __: {"phi": torch.full((L, 1, 1), value)}

    below, above = (sbc(model, batch, constant(v), simulations=3) for v in (1e-9, 1e9))
    assert below.ranks[:, 0].tolist() == [L] * 3
    assert above.ranks[:, 0].tolist() == [0] * 3


def test_draws_that_equal_the_truth_are_counted_by_lot() -> None:
    """An exact posterior with a mass at a point passes; without the lot its ranks would be the lowest."""
    draws = (torch.rand(2000, L, 1) < 0.5).double()
    truths = (torch.rand(2000, 1) < 0.5).double()
    ranks = torch.stack(
        [rank_of_truth(d, t, seed) for seed, (d, t) in enumerate(zip(draws, truths, strict=True))]
    )
    assert ranks.min() == 0
    assert ranks.max() == L
    assert Calibration(("coin",), ranks, L).uneven() == ()
    below = torch.stack([(d < t).sum(0) for d, t in zip(draws, truths, strict=True)])
    assert Calibration(("coin",), below, L).uneven() == ("coin",)
    all_the_same = torch.stack([rank_of_truth(torch.ones(L, 1), torch.ones(1), seed) for seed in range(2000)])
    assert Calibration(("one",), all_the_same, L).uneven() == ()


def test_a_likelihood_that_no_gate_moves_passes() -> None:
    """Nothing is added to the language model: the posterior is the prior, and all draws are alike."""
    model, batch = one_gate(TWO_TOKENS)
    with torch.no_grad():
        for adapter in model.adapters.values():
            adapter.lora_B.zero_()
    assert sbc(model, batch, from_prior, simulations=N).uneven() == ()


def test_simulated_data_follow_the_program() -> None:
    model, batch = one_gate()
    seen = [simulate(model, batch, seed) for seed in range(150)]
    gates = torch.stack([values["phi"].flatten()[0] for values, _ in seen])
    assert stats.kstest(gates.numpy(), stats.expon.cdf).pvalue > 0.001
    labels = torch.stack([labelled.labels for _, labelled in seen])
    grid = Grid(model, batch)
    weight = grid.log_prior.exp()[:, None, None] * grid.log_probs.exp()
    chance = torch.trapezoid(weight, grid.u, dim=0).repeat(3, 1)
    for answer in range(3):
        share = (labels == answer).double().mean(0)
        # 36 comparisons: 4.5 binomial standard errors each.
        assert ((share - chance[:, answer]).abs() < 4.5 * (chance[:, answer] / 150).sqrt() + 0.01).all()
    assert seen[0][1].ids == batch.ids


def test_svi_sampler_starts_anew_each_time_and_leaves_no_trace() -> None:
    model, batch = one_gate()
    guide = WeibullGuide(model)
    start = {name: value.detach().clone() for name, value in guide.named_parameters()}
    sampler = svi_sampler(model, guide, steps=6, lr=0.1, draws=7)
    first = sampler(simulate(model, batch, 1)[1], 1)
    sampler(simulate(model, batch, 2)[1], 2)
    again = sampler(simulate(model, batch, 1)[1], 1)
    assert first["phi"].shape == (7, 1, 1)
    assert torch.equal(first["phi"], again["phi"])
    for name, value in guide.named_parameters():
        assert torch.equal(value, start[name])
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())
    unfitted = svi_sampler(model, guide, steps=1, lr=1e-9, draws=7)(simulate(model, batch, 1)[1], 1)
    assert not torch.allclose(first["phi"], unfitted["phi"], rtol=1e-3)  # it did learn


def test_what_sbc_refuses() -> None:
    model, batch = one_gate(beta_phi=0.5)
    with pytest.raises(ConfigError, match=r"weight 0\.5"):
        sbc(model, batch, from_prior)
    model, batch = one_gate()
    with pytest.raises(ConfigError, match="simulations is 0"):
        sbc(model, batch, from_prior, simulations=0)
    with pytest.raises(ConfigError, match="num_data=12 for 4 rows"):
        sbc(model, make_batch(), from_prior)
    with pytest.raises(DataError, match="different lengths"):
        sbc(*one_gate(latent="phi*theta"), from_prior)
    with pytest.raises(ConfigError, match="LoRA has no gates"):
        sbc(LoRA(model.backbone, len(batch)), batch, from_prior)


def test_distribution_function_and_band() -> None:
    ranks = torch.tensor([[0], [2], [2], [3]])
    assert ecdf(ranks, 3).tolist() == [[0.25, 0.25, 0.75]]
    n, draws = 60, 15
    low, high = band(n, draws, 0.9)
    generator = np.random.default_rng(7)  # not the generator that the band was made with
    uniform = torch.as_tensor(generator.integers(0, draws + 1, (n, 3000)))
    lines = ecdf(uniform, draws)
    inside = ((lines >= low) & (lines <= high)).all(-1)
    # At least 90 %, counts being discrete not much more; standard error 0.5 %.
    assert 0.885 < float(inside.double().mean()) < 0.95
    p = ecdf_test(uniform, draws)
    assert float((p < 0.05).double().mean()) == pytest.approx(0.05, abs=0.03)
    assert torch.equal(p >= 0.1, inside) or float(((p >= 0.1) == inside).double().mean()) > 0.98
    with pytest.raises(ConfigError, match="level is 1"):
        band(n, draws, 1)
    with pytest.raises(ConfigError, match="from 0 to 15"):
        ecdf_test(torch.full((5, 1), 16), 15)


@pytest.mark.parametrize(("simulations", "draws"), [(3, 1), (4, 2), (3, 3)])
def test_the_p_value_is_that_of_all_ways_to_rank(simulations: int, draws: int) -> None:
    """Every vector of ranks is as likely: how often is a smallest binomial p-value so small or smaller?"""
    ways = np.array(list(product(range(draws + 1), repeat=simulations)))

    def least(ranks: np.ndarray) -> float:
        """The smallest two-sided p-value of a count at a point, by scipy."""
        found = []
        for point in range(draws):
            distribution, count = (
                stats.binom(simulations, (point + 1) / (draws + 1)),
                int((ranks <= point).sum()),
            )
            found.append(min(1.0, 2 * min(distribution.cdf(count), distribution.sf(count - 1))))
        return min(found)

    smallest = np.array([least(way) for way in ways])
    exact = np.array([(smallest <= own * (1 + 1e-9)).mean() for own in smallest])
    resamples = 20_000
    found = ecdf_test(torch.as_tensor(ways.T.copy()), draws, resamples).numpy()
    assert np.all(np.abs(found - exact) <= 4.5 * np.sqrt(exact * (1 - exact) / resamples) + 1 / resamples)


@pytest.mark.parametrize("resamples", [1, 99])
def test_a_p_value_counts_the_ranks_themselves(resamples: int) -> None:
    """None of so many uniform samples is as uneven: 1 / (1 + resamples), never 0; all are as uneven: 1."""
    uneven, draws = torch.zeros(200, 1, dtype=torch.long), 15
    assert float(ecdf_test(uneven, draws, resamples)) == 1 / (1 + resamples)
    even = torch.arange(16).repeat(20)[:, None]
    assert float(ecdf_test(even, draws, resamples)) == 1


@pytest.mark.parametrize("kind", ["too sure", "too wide", "shifted"])
def test_the_ecdf_test_finds(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    share = torch.rand(100, 1, generator=generator)
    shapes = {"too sure": (0.5, 0.5), "too wide": (2.5, 2.5), "shifted": (1, 1.8)}
    ranks = torch.as_tensor(stats.beta(*shapes[kind]).ppf(share.numpy()) * 64).long()
    found = Calibration(("q",), ranks, draws=63)
    assert found.uneven() == ("q",)
    (gate,) = found.uniformity()
    assert math.isclose(gate.spread, 1, abs_tol=0.2) == (kind == "shifted")
    assert (abs(gate.rank - 0.5) > 0.08) == (kind == "shifted")
    fair = Calibration(("q",), (share * 64).long(), draws=63)
    assert fair.uneven() == ()

"""PAC-Bayes-kl: the inverse against other solvers, coverage by simulation, what may be said of averages."""

import math
from functools import lru_cache

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats
from torch import Tensor

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.bounds.pac_bayes import (
    LOSSES,
    GibbsBound,
    binary_kl,
    gibbs_bound,
    held_out_bound,
    kl_inverse,
    pac_bayes_kl,
    sample_convergence,
)

RNG = np.random.default_rng(1)


# The inverse ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("q", "budget"), [(0.0, 0.3), (1e-6, 2.0), (0.03, 1e-6), (0.3, 0.01), (0.9, 0.3)])
def test_the_inverse_is_the_root(q: float, budget: float) -> None:
    def kl(p: float) -> float:
        return float(special.rel_entr(q, p) + special.rel_entr(1 - q, 1 - p))

    root = optimize.brentq(lambda p: kl(p) - budget, q, 1 - 1e-15, xtol=1e-14)
    assert kl_inverse(q, budget) == pytest.approx(root, abs=1e-9)
    assert binary_kl(q, 0.6) == pytest.approx(kl(0.6), abs=1e-15)
    grid = np.linspace(q, 1, 20_001)[:-1]
    allowed = grid[special.rel_entr(q, grid) + special.rel_entr(1 - q, 1 - grid) <= budget]
    assert allowed.max() == pytest.approx(root, abs=1e-4)


def test_ends_of_the_inverse() -> None:
    assert kl_inverse(0.0, 0.7) == pytest.approx(1 - math.exp(-0.7))
    assert kl_inverse(1.0, 0.7) == 1.0
    assert kl_inverse(0.2, 0.0) == pytest.approx(0.2, abs=1e-7)  # the divergence is flat there
    assert kl_inverse(0.2, 1e6) == pytest.approx(1.0)
    assert kl_inverse(0.2, 0.5) < kl_inverse(0.21, 0.5) < kl_inverse(0.21, 0.51)
    assert binary_kl(0.3, 1.0) == binary_kl(0.3, 0.0) == math.inf
    for q, budget in ((-0.1, 1.0), (1.1, 1.0), (0.5, -1.0), (math.nan, 1.0), (0.5, math.nan)):
        with pytest.raises(ConfigError, match="kl_inverse"):
            kl_inverse(q, budget)


def test_budgets_of_the_three_bounds() -> None:
    n, delta = 400, 0.05
    assert binary_kl(0.1, pac_bayes_kl(0.1, 3.0, n, delta)) == pytest.approx((3 + math.log(40 / delta)) / n)
    assert binary_kl(0.1, held_out_bound(0.1, n, delta)) == pytest.approx(math.log(1 / delta) / n)
    assert binary_kl(0.1, sample_convergence(0.1, 50, delta)) == pytest.approx(math.log(2 / delta) / 50)
    for bad in ((0, delta), (n, 0.0), (n, 1.0)):
        with pytest.raises(ConfigError, match="delta"):
            held_out_bound(0.1, *bad)


# Coverage ------------------------------------------------------------------------------------------------


@lru_cache
def _held_out(errors: int, n: int, delta: float) -> float:
    return held_out_bound(errors / n, n, delta)


def missed(risk: float, n: int, delta: float) -> float:
    """Exact probability with which the held-out bound lies below the risk."""
    k = np.arange(n + 1)
    below = np.array([_held_out(int(i), n, delta) < risk for i in k])
    return float(stats.binom.pmf(k, n, risk)[below].sum())


def test_the_held_out_bound_covers_exactly() -> None:
    for n in (20, 150):
        for risk in (0.02, 0.2, 0.5, 0.9):
            assert missed(risk, n, 0.1) <= 0.1
    # It is not so wide that everything passes: at a tenth of the confidence it would fail.
    assert missed(0.2, 150, 0.9) > 0.1


def worlds(trials: int, n: int, predictors: int) -> tuple[np.ndarray, np.ndarray]:
    """Known risks of some predictors, and their empirical risks on n rows, independent between them."""
    risks = RNG.uniform(0.25, 0.35, predictors)
    return risks, RNG.binomial(n, risks, (trials, predictors)) / n


def gibbs_posterior(empirical: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Posterior over predictors from their empirical risks (uniform prior), and its divergence."""
    q = special.softmax(-temperature * empirical, axis=1)
    return q, special.rel_entr(q, 1 / q.shape[1]).sum(1)


def violations(trials: int, delta: float, temperature: float) -> float:
    """Share of worlds in which the Gibbs risk exceeds the bound."""
    n = 60
    risks, empirical = worlds(trials, n, 3000)
    q, kl = gibbs_posterior(empirical, temperature)
    count = 0
    for i in range(trials):
        bound = pac_bayes_kl(float(q[i] @ empirical[i]), float(kl[i]), n, delta)
        count += bound < q[i] @ risks
    return count / trials


@pytest.mark.parametrize("temperature", [30.0, 1000.0])
def test_coverage_with_a_posterior_fitted_to_the_rows(temperature: float) -> None:
    trials, delta = 400, 0.2
    error = math.sqrt(delta * (1 - delta) / trials)
    assert violations(trials, delta, temperature) <= delta + 4 * error


def test_coverage_with_draws_in_place_of_the_mean() -> None:
    trials, n, draws, delta = 300, 80, 30, 0.1
    risks, empirical = worlds(trials, n, 40)
    q, kl = gibbs_posterior(empirical, 60.0)
    above_rows = above_draws = 0
    for i in range(trials):
        chosen = RNG.choice(40, draws, p=q[i])
        mean = float((RNG.random((draws, n)) < empirical[i][chosen, None]).mean())
        result = GibbsBound("drawn-answer", mean, draws, n, float(kl[i]), delta, delta, 1.0)
        above_draws += result.empirical < q[i] @ empirical[i]
        above_rows += result.bound < q[i] @ risks
        assert result.bound >= pac_bayes_kl(mean, float(kl[i]), n, delta)
    error = math.sqrt(2 * delta * (1 - 2 * delta) / trials)
    assert above_draws / trials <= delta + 4 * error
    assert above_rows / trials <= 2 * delta + 4 * error


# Losses --------------------------------------------------------------------------------------------------


def some_draws(
    samples: int = 6, rows: int = 9, classes: int = 3, scale: float = 4.0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = scale * torch.randn(samples, rows, classes, generator=generator, dtype=torch.float64)
    return logits.log_softmax(-1), torch.randint(classes, (rows,), generator=generator)


def plain_loss(name: str, probs: list[float], label: int, cap: float) -> float:
    if name == "drawn-answer":
        return 1 - probs[label]
    uniform = len(probs) * math.exp(-cap)
    return -math.log((1 - uniform) * probs[label] + uniform / len(probs))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_the_plain_loop(name: str) -> None:
    draws, labels = some_draws()
    cap = 3.0
    result = gibbs_bound(draws, labels, 2.0, loss=name, loss_cap=cap)
    losses = [
        plain_loss(name, probs, int(label), cap)
        for draw in draws.exp().tolist()
        for probs, label in zip(draw, labels, strict=True)
    ]
    assert result.scale == (cap if name.endswith("nll") else 1.0)
    assert result.scale * result.mean == pytest.approx(np.mean(losses))
    assert max(losses) <= result.scale + 1e-12
    assert (result.draws, result.n, result.kl) == (6, 9, 2.0)
    inner = kl_inverse(result.mean, math.log(2 / 0.005) / 6)
    outer = kl_inverse(inner, (2 + math.log(2 * 3 / 0.045)) / 9)
    assert result.bound == pytest.approx(result.scale * outer)


def test_a_certain_and_wrong_answer_stays_within_the_cap() -> None:
    draws = torch.tensor([[[0.0, -math.inf]]], dtype=torch.float64)
    for name in LOSSES:
        assert gibbs_bound(draws, torch.tensor([1]), 0.0, loss=name).mean == pytest.approx(1.0)
        assert gibbs_bound(draws, torch.tensor([0]), 0.0, loss=name).mean == pytest.approx(0.0, abs=0.01)


# What it says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
def test_no_way_to_print_it_without_what_was_assumed(name: str) -> None:
    result = gibbs_bound(*some_draws(), 2.0, loss=name)
    for text in (str(result), repr(result), f"{result}", f"{[result]}"):
        assert all(sentence in text for sentence in (*result.assumptions, LOSSES[name].covers))
        assert f"{result.bound:.4g}" in text
        assert "at least 0.95 " in text
    assert "fixed on other rows" in str(result)


@pytest.mark.parametrize(
    "bad",
    [
        {"loss": "hinge"},
        {"loss": "smoothed-nll", "loss_cap": math.log(3)},
        {"delta": 0.0},
        {"draws_delta": 0.0},
        {"delta": 0.6, "draws_delta": 0.5},
    ],
)
def test_bad_input(bad: dict) -> None:
    with pytest.raises(ConfigError) as error:
        gibbs_bound(*some_draws(), 1.0, **bad)
    assert str(error.value).endswith(".")
    for kl in (-1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="finite kl"):
            gibbs_bound(*some_draws(), kl)
    draws, labels = some_draws()
    with pytest.raises(DataError):
        gibbs_bound(draws, labels - 3, 1.0)
    with pytest.raises(DataError):
        gibbs_bound(draws + 1, labels, 1.0)


def test_draws_of_each_row_all_count() -> None:
    draws, labels = some_draws()
    shared, own = (gibbs_bound(draws, labels, 1.0, shared=shared) for shared in (True, False))
    assert (shared.draws, own.draws) == (len(draws), draws.shape[0] * draws.shape[1])
    assert own.mean == shared.mean
    assert own.empirical < shared.empirical


def test_a_capless_loss_needs_no_cap() -> None:
    draws = torch.full((20, 30, 110), -math.log(110), dtype=torch.float64)
    labels = torch.zeros(30, dtype=torch.long)
    found = gibbs_bound(draws, labels, kl=1.0, loss="drawn-answer", loss_cap=4.6)
    assert found.mean == pytest.approx(109 / 110)
    with pytest.raises(ConfigError, match=r"loss_cap=4.6 must exceed log C = 4.7"):
        gibbs_bound(draws, labels, kl=1.0, loss="smoothed-nll", loss_cap=4.6)

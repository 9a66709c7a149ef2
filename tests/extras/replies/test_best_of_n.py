"""The best of n replies against all subsets of n, distributions of maxima, and intervals in closed form."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.replies.sampling import (
    at_least_one,
    best_of_n,
    best_of_n_win_rate,
    rank_weights,
)


def mean_over_subsets(values, n: int, score) -> float:
    subsets = [score(subset) for subset in combinations(values, n)]
    return math.fsum(subsets) / len(subsets)


@pytest.mark.parametrize(("samples", "levels"), [(1, None), (2, 2), (4, 4), (7, 2), (7, None)])
def test_equals_the_mean_over_all_subsets(samples: int, levels: int | None) -> None:
    rng = np.random.default_rng(samples)
    rewards = rng.normal(size=(5, samples)) if levels is None else rng.integers(-1, levels, (5, samples))
    found = best_of_n(rewards).per_prompt
    assert found.shape == (5, samples)
    for prompt, row in enumerate(rewards.tolist()):
        for n in range(1, samples + 1):
            assert found[prompt, n - 1] == pytest.approx(mean_over_subsets(row, n, max), abs=1e-14)


@pytest.mark.parametrize("samples", [1, 2, 7])
def test_win_rate_equals_the_mean_over_all_subsets_with_ties_as_halves(samples: int) -> None:
    rng = np.random.default_rng(samples)
    rewards, references = rng.integers(0, 4, (6, samples)), rng.integers(-1, 5, 6)
    found = best_of_n_win_rate(rewards, references).per_prompt
    for prompt, (row, rival) in enumerate(zip(rewards.tolist(), references.tolist(), strict=True)):

        def win(subset, rival=rival) -> float:
            return 100.0 * ((max(subset) > rival) + (max(subset) == rival) / 2)

        for n in range(1, samples + 1):
            assert found[prompt, n - 1] == pytest.approx(mean_over_subsets(row, n, win), abs=1e-12)


@pytest.mark.parametrize("samples", [1, 2, 7, 300])
def test_weights_are_the_ratio_of_binomials(samples: int) -> None:
    found = rank_weights(samples)
    for n in {1, 2, samples // 2, samples - 1, samples} & set(range(1, samples + 1)):
        exact = [Fraction(math.comb(i - 1, n - 1), math.comb(samples, n)) for i in range(1, samples + 1)]
        # Products of up to 300 factors: the relative error is below 300 roundings of each.
        assert found[n - 1] == pytest.approx([float(w) for w in exact], rel=1e-12, abs=1e-300)
        assert sum(exact) == 1


def test_thousands_of_replies_neither_overflow_nor_lose_the_mean_and_the_maximum() -> None:
    rewards = 1e6 + np.random.default_rng(0).normal(size=3000)
    found = rank_weights(3000) @ np.sort(rewards)
    assert found[0] == pytest.approx(rewards.mean(), rel=1e-14)
    assert found[-1] == rewards.max()
    assert (np.diff(found) > -1e-8).all()
    # One winner among N: it is among n of them in n cases of N.
    assert at_least_one(np.array([1]), 3000)[0] == pytest.approx(np.arange(1, 3001) / 3000, rel=1e-11)


def test_curves_hold_estimates_means_and_the_intervals_of_student() -> None:
    rewards = np.random.default_rng(3).normal(size=(50, 4))
    found = best_of_n(rewards, level=0.9, resamples=20_000)
    per_prompt = best_of_n(rewards).per_prompt
    assert found.budgets.tolist() == [1, 2, 3, 4]
    assert found.level == 0.9
    assert (found.per_prompt == per_prompt).all()
    assert found.mean == pytest.approx(per_prompt.mean(axis=0))
    for j, column in enumerate(per_prompt.T):
        low, high = stats.t(49, column.mean(), stats.sem(column)).interval(0.9)
        # 20,000 draws: 0.5 % of the half-width.
        half = (high - low) / 2
        assert found.low[j] == pytest.approx(low, abs=0.02 * half)
        assert found.high[j] == pytest.approx(high, abs=0.02 * half)


@pytest.mark.parametrize("prompts", [2, 40])
def test_rates_without_spread_have_the_exact_interval_of_a_proportion(prompts: int) -> None:
    clusters = [f"c{i // 2}" for i in range(2 * prompts)]
    won, lost = (
        best_of_n_win_rate([[reward] * 3] * 2 * prompts, [0.5] * 2 * prompts, clusters=clusters, level=0.9)
        for reward in (1.0, 0.0)
    )
    exact = stats.binomtest(prompts, prompts).proportion_ci(0.9, method="exact")
    assert won.low == pytest.approx([100 * exact.low] * 3)
    assert won.high.tolist() == won.mean.tolist() == [100.0] * 3
    assert lost.high == pytest.approx([100 - 100 * exact.low] * 3)
    assert lost.low.tolist() == lost.mean.tolist() == [0.0] * 3


def test_win_rates_stay_within_0_and_100_percent() -> None:
    wins = np.ones((20, 2))
    wins[0] = 0.0
    found = best_of_n_win_rate(wins, np.full(20, 0.5))
    assert found.mean == pytest.approx([95, 95])
    assert ((found.mean < found.high) & (found.high < 100)).all()
    lost = best_of_n_win_rate(1 - wins, np.full(20, 0.5))
    assert ((lost.low > 0) & (lost.low < lost.mean)).all()
    assert lost.high == pytest.approx(100 - found.low)
    assert found.budgets.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("rewards", "sentence"),
    [
        ([1.0, 2.0], r"rewards has shape \(2,\): give an array of prompts x samples"),
        ([[1.0], [2.0, 3.0]], "rewards cannot be read as one array"),
        ([["a"]], "rewards cannot be read as one array"),
        (np.empty((3, 0)), r"rewards is empty \(shape \(3, 0\)\)"),
        ([[1.0, 2.0], [3.0, math.nan]], r"rewards\[1, 1\] is nan"),
        ([[-math.inf]], r"rewards\[0, 0\] is -inf"),
    ],
)
def test_unusable_rewards(rewards, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        best_of_n(rewards)
    with pytest.raises(DataError, match=sentence):
        best_of_n_win_rate(rewards, [0.0])


def test_unusable_references_and_settings() -> None:
    rewards = np.zeros((3, 2))
    with pytest.raises(DataError, match="3 prompts and 2 references"):
        best_of_n_win_rate(rewards, [0.0, 0.0])
    with pytest.raises(DataError, match=r"references\[2\] is nan"):
        best_of_n_win_rate(rewards, [0.0, 0.0, math.nan])
    with pytest.raises(DataError, match=r"prompts are in 1 cluster\(s\)"):
        best_of_n(rewards[:1])
    with pytest.raises(DataError, match="3 prompts and 2 clusters"):
        best_of_n(rewards, clusters=["a", "b"])
    with pytest.raises(ConfigError, match=r"level is 1\.5"):
        best_of_n(rewards, level=1.5)
    with pytest.raises(ConfigError, match="resamples is 1"):
        best_of_n_win_rate(rewards, np.zeros(3), resamples=1)

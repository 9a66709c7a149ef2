"""Sampling budgets by hand, by root finding, and of rewards whose best of n has a closed form."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics import (
    best_of_n_per_prompt,
    budget_to_reach,
    compare_budgets,
    mean_over_prompts,
    pass_at_k_per_problem,
    prompt_weights,
)


def names(count: int) -> list[str]:
    return [f"p{i}" for i in range(count)]


def test_by_hand() -> None:
    budgets, curve = [1, 2, 4, 8], [0.0, 1.0, 2.0, 3.0]
    assert budget_to_reach(budgets, curve, 1.5) == pytest.approx(2**1.5)
    assert budget_to_reach(budgets, curve, 2.0) == pytest.approx(4)
    assert budget_to_reach(budgets, curve, 3.0) == pytest.approx(8)
    assert budget_to_reach([10, 1000], [-4.0, -2.0], -3.0) == pytest.approx(100)


def test_nothing_is_extrapolated() -> None:
    budgets, curve = [2, 4], [-1.0, 2.0]
    assert budget_to_reach(budgets, curve, 2.0 + 1e-9) is None
    assert budget_to_reach(budgets, curve, -1.0) == 2.0
    assert budget_to_reach(budgets, curve, -7.0) == 2.0  # nothing is known below the smallest
    assert budget_to_reach([3], [1.0], 1.0) == 3.0


def test_the_last_digit_of_a_sum_is_no_matter() -> None:
    for target in (100.0, -100.0):
        below = math.nextafter(target, -math.inf)
        assert budget_to_reach([1, 2, 4], [-200.0, below, below], target) == pytest.approx(2)
    # Between two scores of which one reaches it by rounding alone nothing is interpolated.
    assert budget_to_reach([1, 2], [100 - 1.001e-10, 100 - 0.999e-10], 100.0) == 2.0


def test_a_curve_that_falls_again_is_reached_the_first_time() -> None:
    assert budget_to_reach([1, 2, 4, 8], [0.0, 2.0, 1.0, 3.0], 1.0) == pytest.approx(math.sqrt(2))


def test_equals_a_root_of_the_interpolated_curve() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        budgets = np.sort(rng.choice(np.arange(1, 100), 6, replace=False))
        curve = np.cumsum(rng.exponential(size=6))
        target = rng.uniform(curve[0], curve[-1])
        root = brentq(
            lambda t, b=budgets, c=curve, y=target: np.interp(t, np.log(b), c) - y,
            math.log(budgets[0]),
            math.log(budgets[-1]),
        )
        assert budget_to_reach(budgets, curve, target) == pytest.approx(math.exp(root))


@pytest.mark.parametrize("shift", [0.0, 0.2, -0.2])
def test_the_comparison_is_that_of_the_mean_curves(shift: float) -> None:
    rng = np.random.default_rng(1)
    first, second = rng.normal(shift, 1.0, (40, 8)), rng.normal(0.0, 1.0, (40, 6))
    curves = [best_of_n_per_prompt(rewards) for rewards in (first, second)]
    found = compare_budgets(
        mean_over_prompts(curves[0]),
        range(1, 9),
        mean_over_prompts(curves[1]),
        range(1, 7),
        names(40),
        resamples=100,
    )
    means = [curve.mean(axis=0) for curve in curves]
    assert found.target == pytest.approx(means[1][-1])
    assert found.reference == pytest.approx(6)
    expected = budget_to_reach(range(1, 9), means[0], found.target)
    assert found.budget == (None if expected is None else pytest.approx(expected))
    assert found.ratio == (None if expected is None else pytest.approx(expected / 6))


def test_ends_are_quantiles_of_the_draws() -> None:
    rng = np.random.default_rng(2)
    one, other = (mean_over_prompts(best_of_n_per_prompt(rng.normal(0.3 * i, 1, (30, 5)))) for i in (1, 0))
    n = range(1, 6)
    found = compare_budgets(one, n, other, n, names(30), resamples=99, level=0.8, seed=3)
    ratios = []
    # Weights vary less than drawn prompts, and a normal distribution's quantiles less than Student's.
    spread = 1 / 30 + math.sqrt(31 / 29) * (prompt_weights(names(30), 99, 3) - 1 / 30)
    for weights in spread:
        needed = budget_to_reach(n, one(weights), other(weights)[-1])
        ratios.append(math.inf if needed is None else needed / 5)
    ratios.sort()
    # About a tenth of 99 draws, rounded up, from either end.
    outside = stats.norm.cdf(stats.t(29).ppf(0.1))
    assert 0.09 < outside < 0.1
    low, high = ratios[math.ceil(99 * outside) - 1], ratios[math.ceil(99 * (1 - outside)) - 1]
    assert found.low == pytest.approx(low)
    assert found.high == (None if math.isinf(high) else pytest.approx(high))
    assert found.reached == pytest.approx(100 * sum(math.isfinite(r) for r in ratios) / 99)
    assert found.level == 0.8


def test_no_method_needs_more_or_less_than_itself() -> None:
    """Also where its curve is flat from some budget on: of pass@k where all problems are solved early."""
    passed = np.tile([True, True, True, True, False, False], (10, 1))
    passed[:5] = True
    curve = mean_over_prompts(pass_at_k_per_problem(passed))
    found = compare_budgets(curve, range(1, 7), curve, range(1, 7), names(10), resamples=100)
    assert found.target == pytest.approx(100)
    assert found.reference == pytest.approx(3)  # two fail: three samples hold a pass
    assert (found.ratio, found.low, found.high) == (1.0, 1.0, 1.0)
    assert found.reached == 100.0


def test_what_is_never_reached_has_no_budget() -> None:
    low, high = (mean_over_prompts(np.tile([[1.0, 2.0]], (5, 1)) + shift) for shift in (0.0, 10.0))
    found = compare_budgets(low, [1, 2], high, [1, 2], names(5), resamples=20)
    assert (found.budget, found.ratio, found.low, found.high, found.reached) == (None, None, None, None, 0.0)
    assert (found.target, found.reference) == (pytest.approx(12.0), pytest.approx(2.0))
    found = compare_budgets(high, [2, 3], low, [1, 2], names(5), resamples=20)
    assert (found.budget, found.ratio, found.low, found.high, found.reached) == (2.0, 1.0, 1.0, 1.0, 100.0)


def test_an_interval_that_is_open_above_still_has_its_lower_end() -> None:
    rng = np.random.default_rng(3)
    rewards = rng.normal(size=(30, 6))
    other = rewards + rng.normal(0.0, 1.0, (30, 1))
    one, two = (mean_over_prompts(best_of_n_per_prompt(r)) for r in (rewards, other))
    found = compare_budgets(one, range(1, 7), two, range(1, 7), names(30), resamples=200)
    assert 5 < found.reached < 95
    assert found.high is None
    assert found.low is not None
    assert found.low < 1.0


@pytest.mark.parametrize(
    ("budgets", "curve", "sentence"),
    [
        ([1, 2], [1.0], "2 budgets and 1 scores"),
        ([2, 1], [1.0, 2.0], r"budgets is \[2.0, 1.0\]: give positive, increasing numbers"),
        ([1, 1], [1.0, 2.0], "increasing numbers"),
        ([0, 1], [1.0, 2.0], "positive"),
        ([1, 2], [1.0, math.nan], r"curve\[1\] is nan"),
        ([], [], "budgets is empty"),
    ],
)
def test_unusable_curves(budgets, curve, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        budget_to_reach(budgets, curve, 1.0)


def test_unusable_input() -> None:
    with pytest.raises(DataError, match="target is nan"):
        budget_to_reach([1], [1.0], math.nan)
    flat = mean_over_prompts(np.ones((3, 2)))
    with pytest.raises(DataError, match="3 budgets and 2 scores"):
        compare_budgets(flat, [1, 2, 3], flat, [1, 2], names(3))
    with pytest.raises(DataError, match="1 cluster"):
        compare_budgets(flat, [1, 2], flat, [1, 2], ["a", "a", "a"])
    with pytest.raises(DataError, match=r"second has shape \(\)"):
        compare_budgets(flat, [1, 2], mean_over_prompts(np.ones(3)), [1, 2], names(3))
    with pytest.raises(ConfigError, match="level is 1"):
        compare_budgets(flat, [1, 2], flat, [1, 2], names(3), level=1.0)
    with pytest.raises(ConfigError, match="resamples is 0"):
        compare_budgets(flat, [1, 2], flat, [1, 2], names(3), resamples=0)

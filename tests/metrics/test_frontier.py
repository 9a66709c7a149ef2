"""Pareto frontiers by their definition, differences by quadrature, and how often intervals hold the truth."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics import (
    EqualDiversity,
    at_equal_diversity,
    compare_frontiers,
    mean_over_prompts,
    pareto_frontier,
    prompt_weights,
)


def names(count: int) -> list[str]:
    return [f"p{i}" for i in range(count)]


def not_beaten(points: list[list[float]]) -> list[int]:
    """Return the settings of the definition, the first of equal ones, by rising diversity."""

    def beats(i: int, j: int) -> bool:
        (s, d), (t, e) = points[i], points[j]
        return s >= t and d >= e and ((s, d) != (t, e) or i < j)

    kept = [j for j in range(len(points)) if not any(beats(i, j) for i in range(len(points)) if i != j)]
    return sorted(kept, key=lambda j: points[j][1])


def test_the_frontier_is_what_no_setting_beats() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        points = rng.integers(0, 5, (rng.integers(1, 9), 2)).astype(float)  # many ties
        assert pareto_frontier(points).tolist() == not_beaten(points.tolist())


def test_scores_that_differ_by_rounding_are_equal() -> None:
    more = 0.1 + 0.2  # 0.30000000000000004
    assert pareto_frontier([[more, 1.0], [0.3, 2.0]]).tolist() == [1]
    assert pareto_frontier([[0.3 + 1e-9, 1.0], [0.3, 2.0]]).tolist() == [0, 1]


def height(curve: list[tuple[float, float]], at: float) -> float:
    """Return the score on the line between the two settings around a diversity, or of the only one."""
    for (d, s), (e, t) in [*itertools.pairwise(curve), (curve[-1], curve[-1])]:
        if d <= at <= e:
            return s + (t - s) * (at - d) / (e - d) if e > d else s
    raise AssertionError


def integral(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float] | None:
    """Return the mean difference by adaptive quadrature between every two knots, and the band."""
    one, other = (
        [(points[i][1], points[i][0]) for i in not_beaten(points)]
        for points in (first.tolist(), second.tolist())
    )
    low, high = max(one[0][0], other[0][0]), min(one[-1][0], other[-1][0])
    if low > high:
        return None
    if low == high:
        return height(one, low) - height(other, low), low, high
    knots = sorted({low, high} | {d for d, _ in one + other if low < d < high})
    parts = [
        quad(lambda d: height(one, d) - height(other, d), *ends)[0] for ends in itertools.pairwise(knots)
    ]
    return sum(parts) / (high - low), low, high


def test_the_difference_is_the_mean_over_the_band() -> None:
    rng, compared = np.random.default_rng(0), 0
    for _ in range(60):
        first, second = (rng.normal(size=(rng.integers(2, 7), 2)) * [1.0, 0.5] for _ in range(2))
        for points in (first, second):  # a sweep: what is more diverse is worse, more or less
            points[:, 0] -= 2 * points[:, 1]
        expected, found = integral(first, second), at_equal_diversity(first, second)
        assert (found is None) == (expected is None)
        if found is None or expected is None:
            continue
        compared += 1
        assert (found.difference, found.low, found.high) == pytest.approx(expected, abs=1e-8)
        turned = at_equal_diversity(second, first)
        assert turned == EqualDiversity(pytest.approx(-found.difference), found.low, found.high)
    assert compared > 30


def test_nothing_is_extrapolated() -> None:
    assert at_equal_diversity([[5, 10], [4, 20]], [[5, 21], [4, 30]]) is None
    # A method that beats all of another's settings in both has no diversity in common with it.
    assert at_equal_diversity([[9, 90]], [[5, 10], [4, 20]]) is None
    edge = at_equal_diversity([[5, 10], [4, 20]], [[7, 20], [3, 30]])
    assert edge == EqualDiversity(-3.0, 20.0, 20.0)


def sweep(rng: np.random.Generator, prompts: int, above: float) -> np.ndarray:
    """Return scores and diversities of three temperatures whose expectations lie on one straight line."""
    diversity = np.array([20.0, 40.0, 60.0])
    noise = rng.normal(size=(prompts, 3, 2)) * [1.0, 2.0]
    return np.stack([above + 10 - diversity / 10, diversity], axis=1) + noise


def test_draws_are_of_prompts_for_both_methods_at_once() -> None:
    """What a prompt adds to both methods alike leaves the difference as it is, without any spread."""
    first = sweep(np.random.default_rng(2), 30, 0.0)
    second = first - np.array([0.25, 0.0])
    found = compare_frontiers(mean_over_prompts(first), mean_over_prompts(second), names(30), resamples=50)
    assert found.found is not None
    assert found.interval is not None
    assert found.found.difference == pytest.approx(0.25)
    assert (found.interval.difference, found.interval.low, found.interval.high) == pytest.approx([0.25] * 3)
    plain = at_equal_diversity(first.mean(axis=0), second.mean(axis=0))
    assert plain is not None
    assert (found.found.low, found.found.high) == pytest.approx((plain.low, plain.high))


def test_the_standard_error_is_that_of_the_draws() -> None:
    rng = np.random.default_rng(3)
    one, other = (mean_over_prompts(sweep(rng, 25, above)) for above in (0.3, 0.0))
    found = compare_frontiers(one, other, names(25), resamples=40, seed=5)
    draws = [at_equal_diversity(one(w), other(w)).difference for w in prompt_weights(names(25), 40, 5)]
    assert found.interval is not None
    assert found.interval.se_rows == pytest.approx(math.sqrt(26 / 24) * np.std(draws, ddof=1))
    assert found.interval.df == 24


def test_no_interval_where_a_draw_has_no_common_diversity() -> None:
    first = sweep(np.random.default_rng(4), 20, 0.0)
    far = first + np.array([0.0, 100.0])
    apart = compare_frontiers(mean_over_prompts(first), mean_over_prompts(far), names(20), resamples=20)
    assert (apart.found, apart.interval, apart.without_band) == (None, None, 100.0)
    # The bands barely meet: prompts of other weights part them.
    gap = first[:, :, 1].mean(axis=0)
    near = sweep(np.random.default_rng(5), 20, 0.0)
    near[:, :, 1] += gap[-1] - near[:, 0, 1].mean() - 0.01
    barely = compare_frontiers(mean_over_prompts(first), mean_over_prompts(near), names(20), resamples=200)
    assert barely.found is not None
    assert barely.interval is None
    assert 20 < barely.without_band < 80


def test_unusable_input() -> None:
    good = [[1.0, 2.0]]
    with pytest.raises(DataError, match="second has 3 columns: give two columns, score and diversity"):
        at_equal_diversity(good, [[1.0, 2.0, 3.0]])
    with pytest.raises(DataError, match=r"first has shape \(2,\)"):
        at_equal_diversity([1.0, 2.0], good)
    with pytest.raises(DataError, match=r"points\[0, 1\] is nan"):
        pareto_frontier([[1.0, math.nan]])
    with pytest.raises(DataError, match=r"points is empty"):
        pareto_frontier(np.empty((0, 2)))
    statistic = mean_over_prompts(sweep(np.random.default_rng(6), 3, 0.0))
    with pytest.raises(DataError, match="3 prompts and 4 clusters"):
        compare_frontiers(statistic, statistic, names(4))
    with pytest.raises(DataError, match="1 cluster"):
        compare_frontiers(statistic, statistic, ["a"] * 3)
    with pytest.raises(ConfigError, match=r"level is 0"):
        compare_frontiers(statistic, statistic, names(3), level=0.0)
    with pytest.raises(ConfigError, match="resamples is 1"):
        compare_frontiers(statistic, statistic, names(3), resamples=1)

"""Weights of drawn prompts and weighted means over them."""

import math

import numpy as np
import pytest
from scipy import stats

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.replies.over_prompts import prompt_weights, sampling_curve


def test_weights_sum_to_one_and_follow_dirichlet() -> None:
    weights = prompt_weights([f"p{i}" for i in range(4)], resamples=20_000)
    assert weights.shape == (20_000, 4)
    assert weights.sum(axis=1) == pytest.approx(np.ones(20_000))
    assert all(stats.kstest(column, stats.beta(1, 3).cdf).pvalue > 0.001 for column in weights.T)


def test_prompts_of_one_name_are_drawn_alike_everywhere() -> None:
    weights = prompt_weights(["a", "b", "a", "c"], resamples=10)
    turned = prompt_weights(["c", "a", "a", "b"], resamples=10)
    assert (weights[:, 0] == weights[:, 2]).all()
    assert turned[:, [1, 3, 2, 0]] == pytest.approx(weights)
    assert (prompt_weights(["a", "b"], 10) == prompt_weights(["a", "b"], 10)).all()
    assert (prompt_weights(["a", "b"], 10) != prompt_weights(["a", "b"], 10, seed=1)).all()


def test_bounds_end_intervals_and_nothing_else() -> None:
    values = np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    free, bound = (
        sampling_curve(values, np.array([1, 2]), resamples=100, **more)
        for more in ({}, {"bounds": (0.0, 1.0)})
    )
    assert (free.low < 0).all()
    assert (free.high > 1).all()
    assert ((bound.low > 0) & (bound.low < bound.mean)).all()
    assert ((bound.high < 1) & (bound.high > bound.mean)).all()
    assert (bound.mean == free.mean).all()


def test_an_interval_between_two_bounds_is_wilsons_of_as_many_prompts_as_the_error_says() -> None:
    """Of Student's t and the error of the bootstrap; both ends are where that many would be surprised."""
    values = (np.random.default_rng(0).random((60, 1)) < 0.1).astype(float)
    free = sampling_curve(values, np.array([1]))
    bound = sampling_curve(values, np.array([1]), bounds=(0.0, 1.0))
    p, half = float(free.mean[0]), float(free.high[0] - free.mean[0])
    t = stats.t(59).ppf(0.975)
    n = p * (1 - p) * (t / half) ** 2
    assert n == pytest.approx(60, rel=0.1)
    for end in (float(bound.low[0]), float(bound.high[0])):
        assert abs(end - p) == pytest.approx(t * math.sqrt(end * (1 - end) / n))


def test_a_budget_where_all_prompts_are_at_a_bound_has_the_exact_interval() -> None:
    """Of Clopper and Pearson, for as many trials as clusters; another budget keeps its own interval."""
    values = np.array([[-1.0, 3.0, -1.0], [-1.0, 3.0, 3.0], [-1.0, 3.0, 3.0], [-1.0, 3.0, -1.0]])
    how = {"clusters": ["a", "b", "c", "c"], "bounds": (-1.0, 3.0), "level": 0.9}
    found = sampling_curve(values, np.array([1, 2, 4]), **how)
    none = stats.binomtest(0, 3).proportion_ci(0.9, method="exact")
    assert (found.low[0], found.high[0]) == pytest.approx((-1.0, -1 + 4 * none.high))
    assert (found.low[1], found.high[1]) == pytest.approx((3 - 4 * none.high, 3.0))
    alone = sampling_curve(values[:, 2:], np.array([4]), **how)
    assert (found.low[2], found.high[2]) == pytest.approx((alone.low[0], alone.high[0]))
    assert -1 < found.low[2] < 1 < found.high[2] < 3


def test_too_little_to_draw_from() -> None:
    for clusters in ([], ["a"], ["a", "a"]):
        with pytest.raises(DataError, match=f"prompts are in {len(set(clusters))} cluster"):
            prompt_weights(clusters)
    with pytest.raises(ConfigError, match="resamples is 1"):
        prompt_weights(["a", "b"], 1)

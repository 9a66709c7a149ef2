"""pass@k against all subsets, the binomials of its definition, and independent samples."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.replies.sampling import best_of_n, pass_at_k


@pytest.mark.parametrize("samples", [1, 2, 7])
def test_equals_the_share_of_subsets_that_hold_a_pass(samples: int) -> None:
    passed = np.array([[i < c for i in range(samples)] for c in range(samples + 1)])
    found = pass_at_k(passed).per_prompt
    for row, estimates in zip(passed.tolist(), found, strict=True):
        for k in range(1, samples + 1):
            subsets = [any(subset) for subset in combinations(row, k)]
            assert estimates[k - 1] == pytest.approx(100 * sum(subsets) / len(subsets), abs=1e-12)


def test_equals_the_binomials_of_many_samples() -> None:
    passed = np.arange(200)[None, :] < np.array([0, 1, 2, 77, 199, 200])[:, None]
    asked = [1, 2, 10, 100, 123, 124, 200]
    found = pass_at_k(passed, asked).per_prompt
    for row, estimates in zip(passed, found, strict=True):
        c = int(row.sum())
        exact = [100 * (1 - Fraction(math.comb(200 - c, k), math.comb(200, k))) for k in asked]
        assert estimates == pytest.approx([float(value) for value in exact], rel=1e-12)
    assert found[0].tolist() == [0.0] * 7
    assert found[-1].tolist() == [100.0] * 7
    assert found[3, 5] == 100.0  # 124 samples hold a pass where 123 fail


def test_is_the_expected_best_of_k_zeros_and_ones() -> None:
    passed = np.random.default_rng(0).random((40, 12)) < 0.2
    assert pass_at_k(passed).per_prompt == pytest.approx(100 * best_of_n(passed).per_prompt, abs=1e-10)


def test_curves_keep_the_k_that_were_asked_for() -> None:
    passed = np.random.default_rng(2).random((30, 8)) < 0.4
    some, every = pass_at_k(passed, [1, 8, 2]), pass_at_k(passed)
    assert some.budgets.tolist() == [1, 8, 2]
    assert every.budgets.tolist() == list(range(1, 9))
    for field in ("mean", "low", "high"):
        assert getattr(some, field) == pytest.approx(getattr(every, field)[[0, 7, 1]])
    assert some.per_prompt.tolist() == every.per_prompt[:, [0, 7, 1]].tolist()
    assert every.mean[0] == pytest.approx(100 * passed.mean())
    assert (every.low >= 0).all()
    assert every.high.max() <= 100


def test_intervals_are_over_problems_and_their_clusters() -> None:
    rng = np.random.default_rng(3)
    passed = rng.random((60, 4)) < rng.random((60, 1))
    alone = pass_at_k(passed, [1])
    half = 1.96 * passed.mean(axis=1).std(ddof=1) / math.sqrt(60) * 100
    assert (alone.high - alone.low) / 2 == pytest.approx([half], rel=0.06)
    # Each problem four times over is no more problems than before.
    again = pass_at_k(np.tile(passed, (4, 1)), [1], clusters=[str(i) for i in range(60)] * 4)
    assert (again.low, again.high) == (pytest.approx(alone.low), pytest.approx(alone.high))
    assert pass_at_k(passed, [1], seed=1).low != alone.low


@pytest.mark.parametrize("k", [[5], [1, 2, 9], [0]])
def test_more_than_there_are_samples_is_refused(k: list[int]) -> None:
    wrong = next(value for value in k if not 1 <= value <= 4)
    with pytest.raises(
        ConfigError, match=rf"k is {wrong}, but each problem has 4 samples: choose k in 1\.\.4"
    ):
        pass_at_k(np.ones((3, 4)), k)


@pytest.mark.parametrize("k", [[], [1.0], [[1]], 1])
def test_k_is_a_list_of_integers(k) -> None:
    with pytest.raises(ConfigError, match="give a list of integers"):
        pass_at_k(np.ones((3, 4)), k)


def test_unusable_outcomes() -> None:
    with pytest.raises(DataError, match=r"passed\[1, 0\] is 0\.5: give 1 for a sample that passes"):
        pass_at_k([[1, 0], [0.5, 1]])
    with pytest.raises(DataError, match=r"passed\[0, 1\] is -1"):
        pass_at_k([[0, -1]])
    with pytest.raises(DataError, match=r"passed has shape \(2,\): give an array of problems x samples"):
        pass_at_k([1, 0])
    with pytest.raises(DataError, match="1 cluster"):
        pass_at_k([[1, 0]])

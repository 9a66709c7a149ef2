"""Scores of n sampled replies to each prompt: pass@k and best of n.

N replies for each prompt are enough for every n up to N. The estimate is the mean over all subsets of n
replies, which is unbiased, varies less than a single subset, and needs only the sorted rewards.
"""

from collections.abc import Sequence
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.replies.over_prompts import (
    Floats,
    IntervalOptions,
    SamplingCurve,
    as_finite_array,
    sampling_curve,
)


def at_least_one(good: NDArray[np.int64], samples: int) -> Floats:
    """Return the probability that n of N samples include a good one, `prompts x N` for n = 1..N.

        1 - C(N - c, n) / C(N, n)

    The ratio of binomials is a product of n factors, which is exact at 0 and 1 and cannot overflow.

    Args:
        good: `prompts`, the number c of good samples for each prompt.
        samples: the number N of samples for each prompt.
    """
    taken = np.arange(samples)
    # When no bad sample is left, a factor is 0, so later (negative) factors do not matter.
    bad_left = samples - good[:, None] - taken
    return 1.0 - np.cumprod(bad_left / (samples - taken), axis=1, dtype=np.float64)


def check_k(k: Sequence[int] | None, samples: int) -> NDArray[np.int64]:
    """Return `k` as an array, None: 1..`samples`; a `ConfigError` for a value that is not in this range."""
    counts = np.arange(1, samples + 1) if k is None else np.asarray(k)
    if counts.ndim != 1 or not counts.size or counts.dtype.kind not in "iu":
        raise ConfigError(f"k is {k!r}: give a list of integers, [1, 10] for example.")
    outside = counts[(counts < 1) | (counts > samples)]
    if outside.size:
        raise ConfigError(
            f"k is {outside[0]}, but each problem has {samples} samples: "
            f"choose k in 1..{samples}, or sample more."
        )
    return counts.astype(np.int64)


def pass_at_k(
    passed: ArrayLike, k: Sequence[int] | None = None, **intervals: Unpack[IntervalOptions]
) -> SamplingCurve:
    """Return the unbiased estimate of pass@k in percent, by problem and on average; higher is better.

        100 * (1 - C(n - c, k) / C(n, k))

    for a problem with n samples of which c pass.

    Source: Chen et al. 2021 (arXiv 2107.03374), equation 1.

    Args:
        passed: `problems x samples`, 1 (or True) for a sampled program that passes all tests.
        k: the values of k, at most the number of samples; if None, all of 1..`samples`.
        **intervals: see `IntervalOptions`.

    Raises:
        DataError: `passed` is empty or ragged, has values other than 0 and 1, or all problems are in one
            cluster.
        ConfigError: a k is below 1 or above the number of samples, or `resamples` or `level` is out of range.

    Examples:
        >>> from bara_pyro.extras.replies.sampling import pass_at_k
        >>> curve = pass_at_k([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]], [1, 2])
        >>> curve.budgets.tolist(), curve.mean.round(2).tolist()
        ([1, 2], [25.0, 44.44])
        >>> curve.per_prompt.round(4).tolist()  # of the second: 3 and 5 of 6 pairs pass
        [[25.0, 50.0], [50.0, 83.3333], [0.0, 0.0]]
    """
    outcome = as_finite_array(passed, "passed", ("problems", "samples"))
    wrong = np.argwhere((outcome != 0) & (outcome != 1))
    if len(wrong):
        place = tuple(wrong[0].tolist())
        raise DataError(
            f"passed{list(place)} is {outcome[place]:g}: give 1 for a sample that passes and 0 for others."
        )
    samples = outcome.shape[1]
    budgets = check_k(k, samples)
    per_problem = 100.0 * at_least_one(outcome.sum(axis=1).astype(np.int64), samples)[:, budgets - 1]
    return sampling_curve(per_problem, budgets, bounds=(0.0, 100.0), **intervals)


def rank_weights(samples: int) -> Floats:
    """Return the probability of each rank to be the best of n of N samples, `N x N`.

    Row n - 1 belongs to n; columns are ranks in increasing order. Rank i is the best in C(i - 1, n - 1) of
    the C(N, n) subsets. The largest has probability n / N, and the weight of rank i is that of rank i + 1
    times (i + 1 - n) / i. All factors lie in 0..1, so the products cannot overflow.
    """
    rank = np.arange(1.0, samples + 1)
    factor = np.clip((rank + 1 - rank[:, None]) / rank, 0.0, None)
    factor[:, -1] = rank / samples
    return np.cumprod(factor[:, ::-1], axis=1, dtype=np.float64)[:, ::-1]


def best_of_n(rewards: ArrayLike, **intervals: Unpack[IntervalOptions]) -> SamplingCurve:
    """Return the expected reward of the best of n = 1..N replies, by prompt and on average.

        sum_i C(i - 1, n - 1) / C(N, n) * reward_(i)

    where reward_(1) <= .. <= reward_(N) are the sorted rewards of a prompt.

    Args:
        rewards: `prompts x N`; the result has the same unit.
        **intervals: see `IntervalOptions`.

    Raises:
        DataError: `rewards` is empty, ragged or not finite, or all prompts are in one cluster.
        ConfigError: `resamples` or `level` is out of range.

    Examples:
        >>> from bara_pyro.extras.replies.sampling import best_of_n
        >>> curve = best_of_n([[1.0, 2.0, 6.0], [0.0, 3.0, 3.0]])
        >>> curve.budgets.tolist(), curve.mean.round(4).tolist()
        ([1, 2, 3], [2.5, 3.8333, 4.5])
        >>> curve.per_prompt[0].round(4).tolist()  # 9 / 3, 14 / 3 and 6
        [3.0, 4.6667, 6.0]
    """
    checked = as_finite_array(rewards, "rewards", ("prompts", "samples"))
    samples = checked.shape[1]
    per_prompt = np.sort(checked, axis=1) @ rank_weights(samples).T
    return sampling_curve(per_prompt, np.arange(1, samples + 1), **intervals)


def best_of_n_win_rate(
    rewards: ArrayLike, references: ArrayLike, **intervals: Unpack[IntervalOptions]
) -> SamplingCurve:
    """Return the win rate in percent of the best of n = 1..N replies over a reference.

    The same reward must choose the reply and compare it with the reference. The estimate does not hold for
    replies that one reward chooses and another judges.

    Args:
        rewards: `prompts x N`.
        references: `prompts`, the reward of the reference reply. A tie counts as half a win.
        **intervals: see `IntervalOptions`.

    Raises:
        DataError: an input is empty, ragged or not finite, the numbers of prompts and references differ, or
            all prompts are in one cluster.
        ConfigError: `resamples` or `level` is out of range.

    Examples:
        >>> from bara_pyro.extras.replies.sampling import best_of_n_win_rate
        >>> curve = best_of_n_win_rate([[1.0, 2.0, 6.0], [0.0, 3.0, 3.0]], [2.0, 5.0])
        >>> curve.mean.round(4).tolist()  # the second prompt's reference is never beaten
        [25.0, 41.6667, 50.0]
    """
    checked = as_finite_array(rewards, "rewards", ("prompts", "samples"))
    rivals = as_finite_array(references, "references", ("prompts",))
    if len(rivals) != len(checked):
        raise DataError(
            f"There are {len(checked)} prompts and {len(rivals)} references: give one for each prompt."
        )
    samples = checked.shape[1]
    above = at_least_one((checked > rivals[:, None]).sum(axis=1), samples)
    level = at_least_one((checked >= rivals[:, None]).sum(axis=1), samples)
    return sampling_curve(50.0 * (above + level), np.arange(1, samples + 1), bounds=(0.0, 100.0), **intervals)

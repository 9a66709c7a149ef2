"""Scores of n sampled replies to each prompt: pass@k, best of n, and means over prompts with intervals.

N replies for each prompt are enough for every n up to N. The estimate is the mean over all subsets of n
replies, which is unbiased, varies less than a single subset, and needs only the sorted rewards.

Prompts are drawn by weight, as rows are in `metrics.bootstrap`. A prompt, or a cluster of prompts such as a
topic, has the same weights for every method, so differences are paired. Replies are not drawn again: each
prompt has independent replies, so the interval over prompts already includes their sampling noise.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics.bootstrap import drawn_clusters
from bara_pyro.metrics.intervals import Interval, TaskDifference, crossed_interval

Floats: TypeAlias = NDArray[np.float64]


def as_finite_array(values: ArrayLike, name: str, axes: Sequence[str]) -> NDArray[np.float64]:
    """Return `values` as a float64 array with the dimensions `axes`.

    If it is ragged, empty or not finite, or has others, this raises a `DataError`.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name} cannot be read as one array ({error}): give every row the same length."
        ) from error
    if array.ndim != len(axes):
        raise DataError(f"{name} has shape {array.shape}: give an array of {' x '.join(axes)}.")
    if array.size == 0:
        raise DataError(f"{name} is empty (shape {array.shape}): there is nothing to score.")
    if not np.isfinite(array).all():
        place = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise DataError(f"{name}{list(place)} is {array[place]}: give finite numbers only.")
    return array


@dataclass(frozen=True)
class SamplingCurve:
    """A score as a function of the number of sampled replies, in the score's unit.

    Attributes:
        budgets: `B`, integers: the numbers of replies, n or k.
        per_prompt: `prompts x B`: the estimate for each prompt.
        mean: `B`: the mean over prompts.
        low: `B`: lower ends of the intervals over prompts. The intervals are pointwise, not simultaneous.
        high: `B`: upper ends of the intervals.
        level: nominal coverage, 0.95 for example.
    """

    budgets: NDArray[np.int64]
    per_prompt: Floats
    mean: Floats
    low: Floats
    high: Floats
    level: float


class IntervalOptions(TypedDict, total=False):
    """Keyword arguments for the intervals over prompts.

    Attributes:
        clusters: the cluster of each prompt; if None (the default), every prompt is a cluster.
        resamples: number of draws of prompts, 2000 by default.
        level: nominal coverage, between 0 and 1; 0.95 by default.
        seed: the same seed gives the same intervals; 0 by default.
    """

    clusters: Sequence[str] | None
    resamples: int
    level: float
    seed: int


def prompt_weights(clusters: Sequence[str], resamples: int = 2000, seed: int = 0) -> Floats:
    """Return bootstrap weights of the prompts, `resamples x prompts`; each row sums to 1.

    Args:
        clusters: the cluster of each prompt; give independent prompts different names.
        resamples: number of draws.
        seed: the same seed gives the same weights.

    Raises:
        DataError: there are fewer than two clusters.
        ConfigError: `resamples` is below 2.

    Examples:
        >>> from bara_pyro.extras.replies.sampling import prompt_weights
        >>> weights = prompt_weights(["cats", "cats", "dogs"], resamples=1000)
        >>> weights.shape, bool((weights[:, 0] == weights[:, 1]).all())  # a cluster is drawn as a whole
        ((1000, 3), True)
    """
    count = len(set(clusters))
    if count < 2:
        raise DataError(
            f"The prompts are in {count} cluster(s): an interval needs prompts of two clusters or more."
        )
    weights, index = drawn_clusters(clusters, resamples, seed)
    of_prompts: Floats = weights[:, index].numpy()
    return of_prompts / of_prompts.sum(axis=1, keepdims=True)


def _within(interval: Interval, bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the ends of an interval for the mean of bounded values, after Wilson (1927).

    Near a bound the distribution of a mean is skewed, and a symmetric interval covers the truth too rarely.
    Wilson's interval lets the standard error depend on the assumed mean.
    """
    least, largest = bounds
    if not (np.isfinite(least) and np.isfinite(largest) and least < interval.difference < largest):
        return interval.low, interval.high
    width = largest - least
    p, half = (interval.difference - least) / width, (interval.high - interval.difference) / width
    # p (1 - p) / n is the largest variance of a mean of n such values: n is chosen to match the error.
    ratio = half**2 / (p * (1 - p))  # Student's t squared, divided by n
    middle, reach = (p + ratio / 2) / (1 + ratio), np.sqrt(half**2 + ratio**2 / 4) / (1 + ratio)
    return least + width * float(middle - reach), least + width * float(middle + reach)


def sampling_curve(
    per_prompt: Floats,
    budgets: NDArray[np.int64],
    *,
    clusters: Sequence[str] | None = None,
    bounds: tuple[float, float] = (-np.inf, np.inf),
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> SamplingCurve:
    """Return means over prompts, with bootstrap intervals over prompts.

    Unbounded scores have Student's intervals, bounded ones Wilson's. If all prompts score at the same bound,
    the bootstrap has no spread; the interval is then that of Clopper and Pearson (1934) for as many trials as
    there are clusters.

    `per_prompt` is `prompts x B`, and `budgets` `B`. Intervals stay between `bounds`, the smallest and the
    largest possible value. The other arguments are `IntervalOptions`.

    Raises:
        DataError: the number of clusters is not that of prompts, or all prompts are in one cluster.
        ConfigError: `resamples` or `level` is out of range.
    """
    names = [str(i) for i in range(len(per_prompt))] if clusters is None else list(clusters)
    if len(names) != len(per_prompt):
        raise DataError(
            f"There are {len(per_prompt)} prompts and {len(names)} clusters: give one for each prompt."
        )
    mean = per_prompt.mean(axis=0)
    drawn = torch.from_numpy(prompt_weights(names, resamples, seed) @ per_prompt)
    intervals = [
        crossed_interval([TaskDifference(torch.tensor([value]), column[:, None], Counter(names))], level)
        for value, column in zip(mean.tolist(), drawn.T, strict=True)
    ]
    ends = [_within(interval, bounds) for interval in intervals]
    low, high = np.clip(np.array(ends).T, *bounds)
    least, largest = bounds
    exact = (largest - least) * ((1 - level) / 2) ** (1 / len(set(names)))
    low = np.where((per_prompt == largest).all(axis=0), least + exact, low)
    high = np.where((per_prompt == least).all(axis=0), largest - exact, high)
    return SamplingCurve(budgets, per_prompt, mean, low, high, level)


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

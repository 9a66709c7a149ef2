"""Means of scores over prompts, with bootstrap intervals over prompts.

Prompts are drawn by weight, as rows are in `metrics.bootstrap`. A prompt, or a cluster of prompts such as a
topic, has the same weights for every method, so differences are paired. Replies are not drawn again: each
prompt has independent replies, so the interval over prompts already includes their sampling noise.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from bara_pyro.errors import DataError
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
        >>> from bara_pyro.extras.replies.over_prompts import prompt_weights
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

"""Means over prompts, with intervals for what other prompts would have given.

Prompts are drawn by weight as rows are in `metrics.bootstrap`: a prompt (or a cluster of them, those of one
topic for example) of the same name is drawn alike for every method, so that differences are paired. The
replies are taken as they are: an interval over prompts holds their sampling noise too, since each prompt has
replies of its own.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from bara_pyro.errors import DataError
from bara_pyro.metrics.bootstrap import drawn_clusters
from bara_pyro.metrics.intervals import Interval, TaskDifference, crossed_interval, effective

Floats: TypeAlias = NDArray[np.float64]

PromptStatistic: TypeAlias = Callable[[Floats], Floats]
"""From weights of the prompts (`prompts`, they sum to 1) to a figure of prompts that count by them."""


@dataclass(frozen=True)
class SamplingCurve:
    """A score against the number of sampled replies, in the score's unit.

    Attributes:
        budgets: `B`, integers: the number of replies, n or k.
        per_prompt: `prompts x B`: the estimate of each prompt.
        mean: `B`: the mean over prompts.
        low: `B`: lower ends of intervals over prompts, each for its budget alone.
        high: `B`: upper ends.
        level: nominal coverage, 0.95 for example.
    """

    budgets: NDArray[np.int64]
    per_prompt: Floats
    mean: Floats
    low: Floats
    high: Floats
    level: float


def prompt_weights(clusters: Sequence[str], resamples: int = 2000, seed: int = 0) -> Floats:
    """Return weights of drawn prompts, `resamples x prompts`; each row sums to 1.

    Args:
        clusters: the cluster of each prompt: a name of its own where prompts are independent.
        resamples: number of draws.
        seed: the same seed gives the same weights.

    Raises:
        DataError: all prompts are of one cluster, or there is none.
        ConfigError: `resamples` is below 2.

    Examples:
        >>> from bara_pyro.metrics import prompt_weights
        >>> weights = prompt_weights(["cats", "cats", "dogs"], resamples=1000)
        >>> weights.shape, bool((weights[:, 0] == weights[:, 1]).all())  # a cluster is drawn as a whole
        ((1000, 3), True)
        >>> bool((abs(weights.sum(axis=1) - 1) < 1e-9).all())
        True
    """
    found = len(set(clusters))
    if found < 2:
        raise DataError(
            f"There are prompts of {found} cluster(s): score prompts of two or more, "
            "or there is no telling what other prompts would change."
        )
    weights, index = drawn_clusters(clusters, resamples, seed)
    of_prompts: Floats = weights[:, index].numpy()
    return of_prompts / of_prompts.sum(axis=1, keepdims=True)


def spread_weights(weights: Floats, clusters: Sequence[str], level: float) -> tuple[Floats, float]:
    """Return weights whose draws vary as other clusters would make them, and the level of their quantiles.

    For statistics that are no mean, whose interval is between quantiles of draws: weights vary less than
    drawn clusters do, and quantiles of few clusters less than Student's (`metrics.intervals` mends both for
    means). A weight may then be a little below 0.

    Args:
        weights: of `prompt_weights`, `resamples x prompts`.
        clusters: the cluster of each prompt.
        level: nominal coverage.
    """
    count = effective([Counter(clusters)])
    even = 1.0 / len(clusters)
    spread: Floats = even + np.sqrt((count + 1) / (count - 1)) * (weights - even)
    return spread, 2 * float(ndtr(stdtrit(max(1.0, count - 1), (1 + level) / 2))) - 1


def mean_over_prompts(per_prompt: Floats) -> PromptStatistic:
    """Return the statistic that is the weighted mean over the first dimension of `per_prompt`.

    `DataError`, from the statistic: there is not one weight a prompt.

    Examples:
        >>> import numpy as np
        >>> from bara_pyro.metrics import mean_over_prompts
        >>> mean = mean_over_prompts(np.array([[1.0, 2.0], [3.0, 4.0]]))  # two prompts, two budgets
        >>> mean(np.array([0.5, 0.5])).tolist(), mean(np.array([0.0, 1.0])).tolist()
        ([2.0, 3.0], [3.0, 4.0])
    """

    def mean(weights: Floats) -> Floats:
        if len(weights) != len(per_prompt):
            raise DataError(
                f"There are {len(per_prompt)} prompts and {len(weights)} clusters: give one cluster a prompt."
            )
        return np.tensordot(weights, per_prompt, axes=1)

    return mean


def _within(found: Interval, bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the ends of an interval of a mean of values between two bounds.

    Near a bound the distribution of a mean is lopsided, and an interval of one width on both sides holds the
    truth too rarely: Wilson's (1927) has the mean's own standard error where the mean is, and another
    elsewhere.
    """
    least, largest = bounds
    if not (np.isfinite(least) and np.isfinite(largest) and least < found.difference < largest):
        return found.low, found.high
    width = largest - least
    p, half = (found.difference - least) / width, (found.high - found.difference) / width
    # As if of p (1 - p) / n, the largest variance that such values can have: n is what the error says.
    ratio = half**2 / (p * (1 - p))  # of Student's t squared to n
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
    """Return means over prompts with Student's intervals by the bootstrap over prompts; of rates Wilson's.

    Rates that are all 0 or all 100 have no spread to draw from, and yet few prompts prove little: their
    interval is that of Clopper and Pearson (1934), for as many successes in as many tries as there are
    clusters.

    Args:
        per_prompt: `prompts x B`.
        budgets: `B`.
        clusters: the cluster of each prompt; each is its own if None.
        bounds: the least and the largest value there can be: intervals end there.
        resamples: number of draws.
        level: nominal coverage, between 0 and 1.
        seed: the same seed gives the same intervals.

    Raises:
        DataError: there is not one cluster a prompt, or all prompts are of one cluster.
        ConfigError: `resamples` or `level` is out of range.
    """
    names = [str(i) for i in range(len(per_prompt))] if clusters is None else list(clusters)
    if len(names) != len(per_prompt):
        raise DataError(
            f"There are {len(per_prompt)} prompts and {len(names)} clusters: give one cluster a prompt."
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

"""Score-diversity frontiers over a sweep of settings, and the comparison of two methods at equal diversity.

A higher temperature makes replies more diverse and often worse, so comparing two methods at one temperature
each confuses the two effects. This module compares the best scores of two methods at diversities that both
reach.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from bara_pyro.errors import DataError
from bara_pyro.metrics._inputs import as_finite_array
from bara_pyro.metrics.budget import ROUNDING
from bara_pyro.metrics.intervals import Interval, TaskDifference, check_level, crossed_interval
from bara_pyro.metrics.over_prompts import Floats, PromptStatistic, prompt_weights


@dataclass(frozen=True)
class EqualDiversity:
    """The mean difference of two frontiers over the band of diversity that both reach.

    Attributes:
        difference: mean of `score(first) - score(second)` over the band, in the score's unit.
        low: the lower end of the band, in the unit of the diversity.
        high: the upper end of the band.
    """

    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class FrontierComparison:
    """Two methods at equal diversity, with an interval over prompts.

    Attributes:
        found: the observed comparison; None if the methods share no diversity.
        interval: the interval of the difference; None if the methods share no diversity in the data or in a
            bootstrap draw.
        without_band: percentage of draws in which the methods share no diversity.
    """

    found: EqualDiversity | None
    interval: Interval | None
    without_band: float


def pareto_frontier(points: ArrayLike) -> NDArray[np.intp]:
    """Return the indices of the Pareto-optimal settings, by increasing diversity and decreasing score.

    A setting is left out if another is at least as good in both columns and better in one. Of equal settings
    the first is kept. Scores that differ only by rounding count as equal.

    Args:
        points: `settings x 2`: score and diversity, higher is better for both.

    Raises:
        DataError: `points` is empty, ragged or not finite, or does not have two columns.

    Examples:
        >>> from bara_pyro.metrics import pareto_frontier
        >>> pareto_frontier([[3.0, 1.0], [2.0, 2.0], [1.0, 1.5]]).tolist()  # the second beats the last
        [0, 1]
    """
    score, diversity = _columns(points, "points")
    order = np.lexsort((-score, -diversity))  # the most diverse first, the best first among equals
    best_so_far = np.maximum.accumulate(np.concatenate([[-np.inf], score[order][:-1]]))
    return order[score[order] - best_so_far > ROUNDING * np.abs(score[order])][::-1]


def _columns(points: ArrayLike, name: str) -> tuple[Floats, Floats]:
    checked = as_finite_array(points, name, ("settings", "2 (score, diversity)"))
    if checked.shape[1] != 2:
        raise DataError(f"{name} has {checked.shape[1]} columns: give two columns, score and diversity.")
    return checked[:, 0], checked[:, 1]


def at_equal_diversity(first: ArrayLike, second: ArrayLike) -> EqualDiversity | None:
    """Return the mean height of the first frontier above the second, over the diversity that both reach.

    Frontiers are interpolated linearly between neighbouring settings and never extrapolated. The mean over
    the band is the exact integral of the interpolated difference. The result is None if the frontiers have no
    diversity in common.

    Args:
        first: `settings x 2`: score and diversity of one method, higher is better for both.
        second: the same for the other method; the number of settings may differ.

    Raises:
        DataError: an input is empty, ragged or not finite, or does not have two columns.

    Examples:
        >>> from bara_pyro.metrics import at_equal_diversity
        >>> first, second = [[3.0, 0.0], [1.0, 2.0]], [[2.0, 0.0], [0.0, 2.0]]
        >>> at_equal_diversity(first, second)
        EqualDiversity(difference=1.0, low=0.0, high=2.0)
    """
    curves = []
    for points, name in ((first, "first"), (second, "second")):
        score, diversity = _columns(points, name)
        frontier = pareto_frontier(points)
        curves.append((diversity[frontier], score[frontier]))
    low = float(max(diversity[0] for diversity, _ in curves))
    high = float(min(diversity[-1] for diversity, _ in curves))
    if low > high:
        return None
    knots = np.unique(np.clip(np.concatenate([diversity for diversity, _ in curves]), low, high))
    one, other = (np.interp(knots, *curve) for curve in curves)
    gap = one - other
    if len(knots) == 1:
        return EqualDiversity(float(gap[0]), low, high)
    # Both curves are linear between knots, so their mean there is the mean of the ends.
    between = (gap[1:] + gap[:-1]) / 2
    return EqualDiversity(float(np.average(between, weights=np.diff(knots))), low, high)


def compare_frontiers(
    first: PromptStatistic,
    second: PromptStatistic,
    clusters: Sequence[str],
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> FrontierComparison:
    """Compare two methods at equal diversity, with an interval over prompts.

    Frontiers and band are computed anew in every draw. A frontier chosen from noisy points lies above the
    frontier of their expectations, and more so with more settings: give both methods the same number of
    settings.

    Args:
        first: maps weights of the prompts to a `settings x 2` array of score and diversity, for example
            `mean_over_prompts` of a `prompts x settings x 2` array.
        second: the same function for the other method, on the same prompts.
        clusters: the cluster of each prompt; give independent prompts different names.
        resamples: number of draws of prompts.
        level: nominal coverage, between 0 and 1.
        seed: the same seed gives the same interval.

    Raises:
        DataError: a function returns another shape, or all prompts are in one cluster.
        ConfigError: `resamples` or `level` is out of range.

    Examples:
        >>> import numpy as np
        >>> from bara_pyro.metrics import compare_frontiers, mean_over_prompts
        >>> points = np.array([[3.0, 0.0], [1.0, 2.0]])  # score, diversity at two temperatures
        >>> first = np.stack([points + noise for noise in (0.1, -0.1, 0.2)])  # three prompts
        >>> second = first - [1, 0]  # one point lower
        >>> found = compare_frontiers(mean_over_prompts(first), mean_over_prompts(second), ["a", "b", "c"])
        >>> round(found.found.difference, 4), found.without_band
        (1.0, 0.0)
    """
    check_level(level)
    weights = prompt_weights(clusters, resamples, seed)
    drawn = [at_equal_diversity(first(row), second(row)) for row in weights]
    even = np.full(len(clusters), 1.0 / len(clusters))
    value = at_equal_diversity(first(even), second(even))
    differences = [draw.difference for draw in drawn if draw is not None]
    interval = None
    if value is not None and len(differences) == len(drawn):
        pair = TaskDifference(
            torch.tensor([value.difference], dtype=torch.float64),
            torch.tensor(differences, dtype=torch.float64)[:, None],
            Counter(clusters),
        )
        interval = crossed_interval([pair], level)
    return FrontierComparison(value, interval, 100.0 * (1 - len(differences) / len(drawn)))

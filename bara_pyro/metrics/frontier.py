"""Score against diversity over a sweep of settings (temperatures), and two methods at equal diversity.

A warmer method is more diverse and often worse: one temperature each compares two points of two curves. What
is compared here is the best score that each method has at a diversity which both reach.
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
        difference: mean of `score(first) - score(second)`, in the score's unit.
        low: the lower end of the band, in the unit of the diversity.
        high: its upper end.
    """

    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class FrontierComparison:
    """Two methods at equal diversity, with an interval over prompts.

    Attributes:
        found: the comparison on the prompts themselves; None where no diversity is reached by both.
        interval: of the difference; None where `found` is, or where drawn prompts leave no such diversity.
        without_band: percentage of draws with no diversity that both reach.
    """

    found: EqualDiversity | None
    interval: Interval | None
    without_band: float


def pareto_frontier(points: ArrayLike) -> NDArray[np.intp]:
    """Return the indices of settings that no other beats, by rising diversity (and falling score).

    A setting is beaten by one that is at least as good and as diverse, and better in one of them; of equal
    settings the first is kept. Scores that differ in their last digits only, as sums do, are equal.

    Args:
        points: `settings x 2`: score and diversity, both higher where better.

    Raises:
        DataError: `points` is empty, ragged, not finite or not of two columns.

    Examples:
        >>> from bara_pyro.metrics import pareto_frontier
        >>> pareto_frontier([[3.0, 1.0], [2.0, 2.0], [1.0, 1.5]]).tolist()  # the last is beaten
        [0, 1]
    """
    score, diversity = _columns(points, "points")
    order = np.lexsort((-score, -diversity))  # the most diverse first, the best first among equals
    best_so_far = np.maximum.accumulate(np.concatenate([[-np.inf], score[order][:-1]]))
    return order[score[order] - best_so_far > ROUNDING * np.abs(score[order])][::-1]


def _columns(points: ArrayLike, name: str) -> tuple[Floats, Floats]:
    checked = as_finite_array(points, name, ("settings", "2 (score, diversity)"))
    if checked.shape[1] != 2:
        raise DataError(f"{name} has {checked.shape[1]} columns: give two, score and diversity.")
    return checked[:, 0], checked[:, 1]


def at_equal_diversity(first: ArrayLike, second: ArrayLike) -> EqualDiversity | None:
    """Return by how much the first frontier is above the second, averaged over the diversity that both reach.

    Scores between neighbouring settings of a frontier are interpolated linearly, and the mean over the band
    is exact for that; nothing is extrapolated. None where the bands of the frontiers do not meet, as where
    every setting of one method is beaten in both by each of the other's.

    Args:
        first: `settings x 2`: score and diversity of one method, both higher where better.
        second: the same of the other; the number of settings may differ.

    Raises:
        DataError: an input is empty, ragged, not finite or not of two columns.

    Examples:
        >>> from bara_pyro.metrics import at_equal_diversity
        >>> first, second = [[3.0, 0.0], [1.0, 2.0]], [[2.0, 0.0], [0.0, 2.0]]
        >>> at_equal_diversity(first, second)
        EqualDiversity(difference=1.0, low=0.0, high=2.0)
    """
    curves = []
    for points, name in ((first, "first"), (second, "second")):
        score, diversity = _columns(points, name)
        kept = pareto_frontier(points)
        curves.append((diversity[kept], score[kept]))
    low = float(max(diversity[0] for diversity, _ in curves))
    high = float(min(diversity[-1] for diversity, _ in curves))
    if low > high:
        return None
    knots = np.unique(np.clip(np.concatenate([diversity for diversity, _ in curves]), low, high))
    one, other = (np.interp(knots, *curve) for curve in curves)
    gap = one - other
    if len(knots) == 1:
        return EqualDiversity(float(gap[0]), low, high)
    # Both are straight between knots: the mean there is the mean of the ends.
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
    """Return two methods at equal diversity, with an interval over prompts.

    Frontiers and band are found again for every draw. The frontier of noisy points lies above that of their
    expectations, the more so the more settings it is chosen from: give both methods as many.

    Args:
        first: from weights of the prompts to `settings x 2`, score and diversity;
            `mean_over_prompts` of a `prompts x settings x 2` array is one.
        second: the same of the other method, on the same prompts.
        clusters: the cluster of each prompt: a name of its own where prompts are independent.
        resamples: number of draws of prompts.
        level: nominal coverage, between 0 and 1.
        seed: the same seed gives the same interval.

    Raises:
        DataError: what a statistic returns is no such array, or all prompts are of one cluster.
        ConfigError: `resamples` or `level` is out of range.

    Examples:
        >>> import numpy as np
        >>> from bara_pyro.metrics import compare_frontiers, mean_over_prompts
        >>> points = np.array([[3.0, 0.0], [1.0, 2.0]])  # score, diversity at two temperatures
        >>> first = np.stack([points + noise for noise in (0.1, -0.1, 0.2)])  # of three prompts
        >>> second = first - [1, 0]  # the same less one point
        >>> found = compare_frontiers(mean_over_prompts(first), mean_over_prompts(second), ["a", "b", "c"])
        >>> round(found.found.difference, 4), found.without_band
        (1.0, 0.0)
    """
    check_level(level)
    weights = prompt_weights(clusters, resamples, seed)
    drawn = [at_equal_diversity(first(row), second(row)) for row in weights]
    even = np.full(len(clusters), 1.0 / len(clusters))
    found = at_equal_diversity(first(even), second(even))
    differences = [draw.difference for draw in drawn if draw is not None]
    interval = None
    if found is not None and len(differences) == len(drawn):
        pair = TaskDifference(
            torch.tensor([found.difference], dtype=torch.float64),
            torch.tensor(differences, dtype=torch.float64)[:, None],
            Counter(clusters),
        )
        interval = crossed_interval([pair], level)
    return FrontierComparison(found, interval, 100.0 * (1 - len(differences) / len(drawn)))

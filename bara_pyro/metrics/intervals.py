"""Intervals for paired differences, crossed over seeds and clusters of rows, and Holm's correction.

A measured difference has two sources of noise:

- Training: another seed gives another model.
- Test rows: another test set has other clusters (people, authors, passages), and the errors of rows in one
  cluster are correlated.

All seeds answer the same rows, so the two sources are crossed. A bootstrap over rows covers only the second
source, a test over seeds only the first. The variance of a difference averaged over seeds is that of two-way
clustered errors (Cameron, Gelbach and Miller 2011, J. Bus. Econ. Stat. 29, 238-249):

    V = V(seeds) + V(clusters) - V(seeds and clusters)

V(seeds) is estimated from the differences of the seeds. The other two are estimated by drawing clusters
(`metrics.bootstrap`), the same ones for every system, seed and task. The interval is Student's, with
Satterthwaite's degrees of freedom.

- Coverage: three seeds on one task can leave as few as 2 degrees of freedom, a half-width of 4.3 standard
  errors. If V(seeds) is 90 % of V, a nominal 95 % interval then covers the truth in 92 % of cases. Averages
  over six tasks have up to 12 degrees of freedom and a coverage of 95 to 96 %.
- Trainings are assumed to be independent. Several test sets answered by the same trained models count as one
  training: their differences are averaged first.
- Seeds that agree by chance can make V smaller than V(clusters). The interval is therefore never narrower
  than the interval over rows for these models.
- One seed gives no V(seeds). The interval then covers other rows, but not other trainings.
- Unequal clusters count as an effective number of equal ones (`effective`). With one cluster of 50 rows and
  fifty of one row, counting names would lower the coverage of a nominal 95 % interval to 62 %.

Percentile intervals of draws over both factors (the pigeonhole bootstrap, Owen 2007, Ann. Appl. Stat. 1,
386-411) are not used. If only seeds vary, their coverage with three seeds is 75 % instead of 95 %, and they
count V(seeds and clusters) three times.
"""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from scipy.special import stdtr, stdtrit
from torch import Tensor

from bara_pyro.errors import ConfigError, DataError

Clusters: TypeAlias = Collection[str] | Mapping[str, int]
"""Names of clusters of equal size, or the number of rows of each cluster."""

ROUNDING = 1e-12  # relative to a difference: a smaller spread is rounding


@dataclass(frozen=True)
class Interval:
    """A confidence interval for `score(a) - score(b)`, averaged over seeds and tasks, in the score's unit.

    Attributes:
        difference: the observed difference.
        low: the lower end of the interval.
        high: the upper end of the interval.
        level: the nominal coverage, 0.95 for example.
        p_value: two-sided p-value of the hypothesis of no difference.
        se_seeds: standard error due to training seeds, for fixed test rows; None for one seed.
        se_rows: standard error due to test rows, for fixed trained models.
        df: degrees of freedom of Student's t.
    """

    difference: float
    low: float
    high: float
    level: float
    p_value: float
    se_seeds: float | None
    se_rows: float
    df: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0: the systems differ at this level."""
        return self.low > 0.0 or self.high < 0.0


@dataclass(frozen=True)
class TaskDifference:
    """The difference of two systems on one task, by seed and by bootstrap draw.

    Attributes:
        by_seed: float64, `seeds`: the observed difference of each seed.
        drawn: float64, `resamples x seeds`: the same difference on drawn clusters of rows.
        clusters: the clusters of the rows of the task.
    """

    by_seed: Tensor
    drawn: Tensor
    clusters: Clusters


def effective(clusters: Sequence[Clusters]) -> float:
    """Return the effective number of clusters behind an average over tasks (Kish).

        1 / sum_k share_k^2

    where share_k is the share of rows in cluster k, averaged over tasks. Clusters of equal size give their
    number; a few large clusters give less.
    """
    shares: dict[str, float] = {}
    for task in clusters:
        sizes = task if isinstance(task, Mapping) else dict.fromkeys(task, 1)
        rows = sum(sizes.values()) * len(clusters)
        for name, size in sizes.items():
            shares[name] = shares.get(name, 0.0) + size / rows
    return round(1 / sum(share**2 for share in shares.values()), 9)  # exact for equal sizes


def crossed_interval(
    tasks: Sequence[TaskDifference], level: float = 0.95, *, trainings: Sequence[Hashable] | None = None
) -> Interval:
    """Return the confidence interval of a difference averaged over tasks.

    Args:
        tasks: one or more tasks with the same bootstrap draws.
        level: nominal coverage, between 0 and 1.
        trainings: a key for each task. Tasks with the same key were answered by the same trained models, seed
            by seed. If None, every task has its own models.

    Raises:
        ConfigError: `level` is out of range.
        DataError: all rows of a task are in one cluster, or tasks with the same key differ in their number of
            seeds.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import TaskDifference, crossed_interval
        >>> by_seed = torch.tensor([0.9, 1.0, 1.1])  # three seeds
        >>> noise = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
        >>> drawn = by_seed + 0.2 * noise  # the effect of other rows, the same for all seeds
        >>> found = crossed_interval([TaskDifference(by_seed, drawn, frozenset(map(str, range(100))))])
        >>> round(found.difference, 2), found.excludes_zero
        (1.0, True)
        >>> round(found.se_seeds, 3), round(found.se_rows, 1)  # 0.1 / sqrt(3), and 0.2
        (0.058, 0.2)
    """
    check_level(level)
    known = [_mended(task) for task in tasks]
    drawn = [task.clusters for task in known]
    clusters = len(frozenset().union(*drawn))
    free = max(1.0, effective(drawn) - 1)  # below 1 Student's quantiles are useless
    difference = float(torch.stack([task.by_seed.mean() for task in known]).mean())
    rows = float(torch.stack([task.drawn.mean(dim=1) for task in known]).mean(dim=0).var())
    trained = _by_training(known, range(len(known)) if trainings is None else trainings)
    if any(len(one.by_seed) < 2 for one, _ in trained):
        return _agreed(_student(difference, None, rows, rows, free, level), clusters)
    seeds = [share**2 * float(one.by_seed.var()) / len(one.by_seed) for one, share in trained]
    both = sum(share**2 * _of_one_seed(one.drawn) for one, share in trained)
    shared = max(0.0, rows - both)
    variance = sum(seeds) + shared
    parts = [(v, len(one.by_seed) - 1.0) for v, (one, _) in zip(seeds, trained, strict=True)]
    parts.append((shared, free))
    spread = sum(v**2 / df for v, df in parts)
    # Without variance the degrees of freedom do not matter.
    df = variance**2 / spread if spread else free
    crossed = _student(difference, sum(seeds), rows, variance, df, level)
    alone = _student(difference, sum(seeds), rows, rows, free, level)
    return _agreed(max(crossed, alone, key=lambda interval: interval.high), clusters)


def check_level(level: float) -> None:
    """Raise `ConfigError` for a coverage that is not between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise ConfigError(f"level is {level}: give a number between 0 and 1, 0.95 for example.")


def _mended(task: TaskDifference) -> TaskDifference:
    """Return a task whose draws have the variance between clusters; drawn weights vary less than that."""
    if len(task.clusters) < 2:
        raise DataError("All rows are in one cluster: an interval needs rows of two clusters or more.")
    clusters, mean = effective([task.clusters]), task.drawn.mean(dim=0)
    return replace(task, drawn=mean + math.sqrt((clusters + 1) / (clusters - 1)) * (task.drawn - mean))


def _by_training(
    tasks: Sequence[TaskDifference], trainings: Sequence[Hashable]
) -> list[tuple[TaskDifference, float]]:
    """Return the average of the tasks of each training and the share of these tasks among all."""
    groups: dict[Hashable, list[TaskDifference]] = {}
    for training, task in zip(trainings, tasks, strict=True):
        groups.setdefault(training, []).append(task)
    means = []
    for training, group in groups.items():
        seeds = [len(task.by_seed) for task in group]
        if len(set(seeds)) > 1:
            raise DataError(
                f"The tasks of training {training} have {seeds} seeds: compare the same seeds on every task."
            )
        by_seed = torch.stack([task.by_seed for task in group]).mean(dim=0)
        drawn = torch.stack([task.drawn for task in group]).mean(dim=0)
        clusters = frozenset().union(*(task.clusters for task in group))
        means.append((TaskDifference(by_seed, drawn, clusters), len(group) / len(tasks)))
    return means


def _of_one_seed(drawn: Tensor) -> float:
    """Return the part of the clusters' variance that is not shared by the seeds, of the mean over seeds."""
    seeds = drawn.shape[1]
    covariance = torch.cov(drawn.T)
    variance = float(covariance.diagonal().mean())
    shared = (float(covariance.sum()) - seeds * variance) / (seeds * (seeds - 1))
    return (variance - shared) / seeds


def _agreed(interval: Interval, clusters: int) -> Interval:
    """Return an interval without width with the p-value of a sign test over its clusters.

    Clusters that agree to the last digit show the sign of a difference, but not how much other clusters would
    vary. If the sign test is not significant, the interval is widened to include 0.
    """
    if not interval.difference or interval.high - interval.difference > ROUNDING * abs(interval.difference):
        return interval
    p_value = 2 * 0.5**clusters
    half = 0.0 if p_value < 1 - interval.level else abs(interval.difference)
    return replace(interval, low=interval.difference - half, high=interval.difference + half, p_value=p_value)


def _student(
    difference: float, seeds: float | None, rows: float, variance: float, df: float, level: float
) -> Interval:
    error = math.sqrt(variance)
    half = float(stdtrit(df, (1 + level) / 2)) * error
    p_value = 2 * float(stdtr(df, -abs(difference) / error)) if error else float(difference == 0.0)
    se_seeds = None if seeds is None else math.sqrt(seeds)
    return Interval(
        difference, difference - half, difference + half, level, p_value, se_seeds, math.sqrt(rows), df
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple comparisons by Holm's step-down method.

    The k-th smallest of m p-values is multiplied by m + 1 - k. Adjusted values are at most 1 and keep their
    order.

    Source: Holm 1979, Scand. J. Stat. 6, 65-70.

    Examples:
        >>> from bara_pyro.metrics import holm
        >>> holm([0.01, 0.04, 0.03])  # 3 * 0.01, 2 * 0.03, then at least as much
        [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted

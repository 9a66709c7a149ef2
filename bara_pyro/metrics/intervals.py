"""Intervals of a paired difference, crossed over seeds and clusters of rows, and Holm's correction.

Two things could have come out otherwise. Training: another seed is another model. The test rows: other
residents, authors or passages (clusters) would have been asked about, and rows of one cluster err together.
All seeds answer the same rows, so the two are crossed, and neither a bootstrap over rows alone nor a test
over seeds alone covers both. The variance of a difference averaged over seeds is that of two-way clustered
errors (Cameron, Gelbach and Miller 2011, J. Bus. Econ. Stat. 29, 238-249):

    V = V(seeds) + V(clusters) - V(seeds and clusters)

V(seeds) comes from the differences of the seeds themselves, the other two from drawing clusters
(`metrics.bootstrap`), the same for every system, seed and task. The interval is Student's, with
Satterthwaite's degrees of freedom. Three seeds on one task have as few as 2 of them, a half-width of 4.3
standard errors: that is what three seeds can say, and where they are nine tenths of V it still holds the
truth in 92 % of the cases only. Training noise is taken as independent between trainings: an average over
six tasks has up to 12 degrees, and 95 to 96 %. Several sets of rows that were asked of the same trained
models (shifts) are one training: their differences are averaged first. Seeds that happen to agree can make V
smaller than what other rows do to these very models; an interval over both is never narrower than that over
rows alone. With one seed there is no V(seeds): the interval speaks of these trained models on other rows.
Clusters count as many as would be of one size (`effective`): with few large ones among many small the number
of names would promise too much (one of 50 rows, fifty of 1: 62 % for 95).

Quantiles of draws over both factors (the pigeonhole bootstrap, Owen 2007, Ann. Appl. Stat. 1, 386-411) are
not used. Of three seeds they hold a difference that varies by seeds alone in 75 % of the cases and not in
95, and they count V(seeds and clusters) three times.
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
"""Names of clusters of one size, or the number of rows of each."""

ROUNDING = 1e-12  # of a difference: a spread that is no spread


@dataclass(frozen=True)
class Interval:
    """An interval of `score(a) - score(b)`, averaged over seeds and tasks, in the score's unit.

    Attributes:
        difference: the difference on the rows themselves.
        low: the lower end of the interval.
        high: the upper end.
        level: the nominal coverage, 0.95 for example.
        p_value: two-sided, of no difference.
        se_seeds: standard error by training again with other seeds, the rows as they are; None of one seed.
        se_rows: standard error by other clusters of rows, the trained models as they are.
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
        """Whether the systems differ at this level."""
        return self.low > 0.0 or self.high < 0.0


@dataclass(frozen=True)
class TaskDifference:
    """What is known of a difference on one task.

    Attributes:
        by_seed: the difference of each seed on the rows themselves, float64, `seeds`.
        drawn: the same on drawn clusters, `resamples x seeds`.
        clusters: those of its rows.
    """

    by_seed: Tensor
    drawn: Tensor
    clusters: Clusters


def effective(clusters: Sequence[Clusters]) -> float:
    """Return as how many clusters of one size those of some tasks count, whose differences are averaged.

    `1 / sum(share^2)`, Kish's number: where one cluster holds half of the rows, 100 others of one row each
    do not make the average as certain as 101 equal ones would.
    """
    shares: dict[str, float] = {}
    for task in clusters:
        sizes = task if isinstance(task, Mapping) else dict.fromkeys(task, 1)
        rows = sum(sizes.values()) * len(clusters)
        for name, size in sizes.items():
            shares[name] = shares.get(name, 0.0) + size / rows
    return round(1 / sum(share**2 for share in shares.values()), 9)  # clusters of one size: their number


def crossed_interval(
    tasks: Sequence[TaskDifference], level: float = 0.95, *, trainings: Sequence[Hashable] | None = None
) -> Interval:
    """Return the interval of a difference averaged over tasks.

    Args:
        tasks: one or more, drawn with the same resamples.
        level: nominal coverage, between 0 and 1.
        trainings: what was trained on for each task; tasks of one name share trained models, seed by seed.
            None: each has its own.

    Raises:
        ConfigError: `level` is out of range.
        DataError: all rows of a task are of one cluster, or tasks of one training have other seeds.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import TaskDifference, crossed_interval
        >>> by_seed = torch.tensor([0.9, 1.0, 1.1])  # of three seeds
        >>> noise = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
        >>> drawn = by_seed + 0.2 * noise  # as other rows would have it: the same for all seeds
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
    free = max(1.0, effective(drawn) - 1)  # below 1 Student's quantiles are no numbers of use
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
    # A difference that never varies has any number of degrees of freedom.
    df = variance**2 / spread if spread else free
    crossed = _student(difference, sum(seeds), rows, variance, df, level)
    alone = _student(difference, sum(seeds), rows, rows, free, level)
    return _agreed(max(crossed, alone, key=lambda interval: interval.high), clusters)


def check_level(level: float) -> None:
    """Raise `ConfigError` for a coverage that is not between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise ConfigError(f"level is {level}: give a number between 0 and 1, 0.95 for example.")


def _mended(task: TaskDifference) -> TaskDifference:
    """Return a task whose draws vary as much as other clusters would make them: weights vary less."""
    if len(task.clusters) < 2:
        raise DataError("All rows are of one cluster: there is no telling how much clusters differ.")
    clusters, mean = effective([task.clusters]), task.drawn.mean(dim=0)
    return replace(task, drawn=mean + math.sqrt((clusters + 1) / (clusters - 1)) * (task.drawn - mean))


def _by_training(
    tasks: Sequence[TaskDifference], trainings: Sequence[Hashable]
) -> list[tuple[TaskDifference, float]]:
    """Return the average of the tasks of each training, and its share of all tasks."""
    groups: dict[Hashable, list[TaskDifference]] = {}
    for training, task in zip(trainings, tasks, strict=True):
        groups.setdefault(training, []).append(task)
    found = []
    for training, group in groups.items():
        seeds = [len(task.by_seed) for task in group]
        if len(set(seeds)) > 1:
            raise DataError(f"Tasks of training {training} have {seeds} seeds: compare those that all have.")
        by_seed = torch.stack([task.by_seed for task in group]).mean(dim=0)
        drawn = torch.stack([task.drawn for task in group]).mean(dim=0)
        clusters = frozenset().union(*(task.clusters for task in group))
        found.append((TaskDifference(by_seed, drawn, clusters), len(group) / len(tasks)))
    return found


def _of_one_seed(drawn: Tensor) -> float:
    """Return the variance of the mean over seeds by what clusters do to each seed by itself."""
    seeds = drawn.shape[1]
    covariance = torch.cov(drawn.T)
    own = float(covariance.diagonal().mean())
    shared = (float(covariance.sum()) - seeds * own) / (seeds * (seeds - 1))
    return (own - shared) / seeds


def _agreed(found: Interval, clusters: int) -> Interval:
    """Return an interval that has no width with what clusters that all agree can tell.

    To the last digit alike they say on which side of 0 they lie, and not by how much others would differ: a
    sign test, and an interval that has 0 in it where that tells nothing.
    """
    if not found.difference or found.high - found.difference > ROUNDING * abs(found.difference):
        return found
    p_value = 2 * 0.5**clusters
    half = 0.0 if p_value < 1 - found.level else abs(found.difference)
    return replace(found, low=found.difference - half, high=found.difference + half, p_value=p_value)


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
    """Return p-values adjusted for all of them being looked at (Holm 1979, Scand. J. Stat. 6, 65-70).

    Examples:
        >>> from bara_pyro.metrics import holm
        >>> holm([0.01, 0.04, 0.03])  # 3 * 0.01, then 2 * 0.03, and no less than that
        [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted

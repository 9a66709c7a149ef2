"""One arm against another over several worlds: in these worlds, and in worlds as such.

Tasks of different worlds share no residents, so that the interval of these worlds is that of
`experiments.engine.differences` over all pairs of world and task. For new worlds
the interval is Student's, of the averages by world.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, stdev
from typing import Any

from scipy.optimize import brentq
from scipy.stats import nct
from scipy.stats import t as student

from bara_pyro.cli.terminal import say, show
from bara_pyro.errors import ConfigError, DataError, unknown
from bara_pyro.report import Column, Table
from experiments.engine.arguments import command_line, option
from experiments.engine.differences import LEVEL, METRICS, averaged
from experiments.engine.rows import RunRows, rows_of_study


@dataclass(frozen=True)
class Range:
    """A difference, its interval, and the p-value of a difference of 0."""

    difference: float
    low: float
    high: float
    p: float

    @property
    def width(self) -> float:
        """From the lower end to the upper one."""
        return self.high - self.low


@dataclass(frozen=True)
class OverWorlds:
    """A difference averaged over worlds.

    Attributes:
        by_world: the average over the tasks of each world.
        these: what other trainings and other residents of these worlds would change.
        as_such: what other worlds would change.
    """

    by_world: Mapping[str, float]
    these: Range
    as_such: Range

    @property
    def decides(self) -> Range:
        """The wider of the two."""
        return max(self.these, self.as_such, key=lambda found: found.width)


def over_worlds(worlds: Mapping[str, Sequence[RunRows]], arm: str, reference: str, metric: str) -> OverWorlds:
    """Return `arm` minus `reference`, averaged over worlds, and over the tasks of each.

    Args:
        worlds: name -> rows of its runs, of which those of the tasks that were learnt count.
        arm: whose score is the first.
        reference: whose score is taken off.
        metric: "acc", "ece", "nll" or "brier".

    Raises:
        DataError: fewer than two worlds, worlds of different tasks or seeds, or a score that is not finite.
    """
    if len(worlds) < 2:
        raise DataError(f"There are rows of {len(worlds)} world: an interval over worlds takes two or more.")
    told, by_world, shapes = [], {}, set()
    for world, runs in worlds.items():
        own = [run for run in runs if run.task == run.tested_on and run.arm in (arm, reference)]
        shapes.add(tuple(sorted((run.arm, run.task, run.seed) for run in own)))
        by_world[world] = _difference(own, arm, reference, metric)["difference"]
        told += [replace(run, task=f"{run.task} {world}", tested_on=f"{run.task} {world}") for run in own]
    if len(shapes) > 1:
        raise DataError("The worlds have not the same arms, tasks and seeds: run what is missing.")
    found = _difference(told, arm, reference, metric)
    these = Range(found["difference"], found["low"], found["high"], found["p"])
    return OverWorlds(by_world, these, student_range(list(by_world.values())))


def student_range(values: Sequence[float]) -> Range:
    """Return the mean of two or more numbers with Student's interval."""
    mean, error, df = fmean(values), stdev(values) / len(values) ** 0.5, len(values) - 1
    half = float(student.ppf((1 + LEVEL) / 2, df)) * error
    p = 2 * float(student.sf(abs(mean) / error, df)) if error else float(mean == 0.0)
    return Range(mean, mean - half, mean + half, p)


def _difference(runs: Sequence[RunRows], arm: str, reference: str, metric: str) -> dict[str, Any]:
    found: dict[str, Any] = averaged(runs, arm, reference)[metric]
    if found["difference"] is None:
        raise DataError(f"A {metric} of {arm} or {reference} is not finite.")
    return found


ABOUT = """\
How small a difference a study of so many worlds, seeds and rows can show, from the runs of a stored one.

    python -m experiments power in_distribution --arm bara-gate --reference temperature

What a difference averaged over tasks varies by is read off the stored rows of one world
(`bara_pyro.metrics.crossed_interval`): by training with another seed, and by asking about other residents.
With W worlds of K seeds, each of which asks m times as many clusters of rows,

    V = (V(seed) / K + V(rows) / m) / W

and Student's test has the degrees of freedom of Satterthwaite. That speaks of these worlds. Of worlds as such
there are W numbers, and W - 1 degrees of freedom; how much a difference varies between worlds no single one
can tell, so that what is given for worlds as such is the best case, in which it does not. V(rows) of the
stored runs holds some of what seeds and rows do together: seen so, V is a little too large.
"""
WORLDS, SEEDS, ROWS, POWER = (1, 3, 6), (1, 3, 5, 10, 20), (1.0, 4.0), 0.9


@dataclass(frozen=True)
class Spread:
    """What a difference, averaged over the tasks of one world, varies by.

    Attributes:
        seed: its variance by one training of every task.
        rows: its variance by the clusters of test rows.
        tasks: number of tasks, whose trainings are independent.
        clusters: number of clusters of rows.
    """

    seed: float
    rows: float
    tasks: int
    clusters: int


@dataclass(frozen=True)
class Design:
    """How much is run: so many worlds, seeds in each, and so many times the clusters of rows."""

    worlds: int
    seeds: int
    rows: float = 1.0


def standard_error(spread: Spread, design: Design) -> tuple[float, float]:
    """Return the standard error of the difference averaged over these worlds, and its degrees of freedom.

    They are not a number for one seed, which does not tell what training varies by.
    """
    seeds = spread.seed / design.seeds / design.worlds
    rows = spread.rows / design.rows / design.worlds
    trained = design.worlds * spread.tasks * (design.seeds - 1)
    asked = design.worlds * (spread.clusters * design.rows - 1)
    df = (seeds + rows) ** 2 / (seeds**2 / trained + rows**2 / asked) if trained else math.nan
    return (seeds + rows) ** 0.5, df


def power(difference: float, error: float, df: float, level: float = LEVEL) -> float:
    """Return the power: how often a difference of this size is significant, on its own side."""
    return float(nct.sf(student.ppf((1 + level) / 2, df), df, abs(difference) / error))


def detectable(error: float, df: float, wanted: float = POWER, level: float = LEVEL) -> float:
    """Return the difference that is significant so often."""
    # With one degree of freedom the quantile is 12.7 standard errors, and 90 % takes some hundred.
    return float(brentq(lambda size: power(size * error, error, df, level) - wanted, 0.0, 1000.0) * error)


def spread_of(runs: Sequence[RunRows], arm: str, reference: str, metric: str) -> Spread:
    """Read off the runs of one world what a difference varies by.

    Raises:
        ConfigError: an arm or a metric that is not there.
        DataError: fewer than two seeds, or no row of the tasks that were learnt.
    """
    own = [run for run in runs if run.tested_on == run.task]
    for name in (arm, reference):
        if name not in (arms := {run.arm for run in own}):
            raise ConfigError(unknown("arm", name, sorted(arms)))
    if metric not in METRICS:
        raise ConfigError(unknown("metric", metric, METRICS))
    entry = averaged(own, arm, reference)
    found, seeds = entry[metric], len(entry["seeds"])
    if found["se_seeds"] is None:
        raise DataError(f"{arm} and {reference} have one seed in common: the spread of training takes two.")
    pair = [run for run in own if run.arm in (arm, reference)]
    tasks, clusters = {run.task for run in pair}, {name for run in pair for name in run.clusters}
    return Spread(seeds * found["se_seeds"] ** 2, found["se_rows"] ** 2, len(tasks), len(clusters))


def table(spread: Spread) -> Table:
    """Return the difference that is significant nine times in ten, a row a design."""
    rows = []
    for design in (Design(*sizes) for sizes in product(WORLDS, SEEDS, ROWS)):
        error, df = standard_error(spread, design)
        row = {"error": error}
        if design.seeds > 1:
            row["these"] = detectable(error, df)
        if design.worlds > 1:
            row["such"] = detectable(error, design.worlds - 1)
        rows.append({**vars(design), **row})
    columns = (
        Column("worlds", "worlds", format="d"),
        Column("seeds", "seeds", format="d"),
        Column("rows", "rows x", format="g"),
        Column("error", "SE", format=".4f"),
        Column("these", "these worlds", format=".4f"),
        Column("such", "as such, at best", format=".4f"),
    )
    return Table(columns, rows, f"differences that are told from none in {POWER:.0%} of studies")


def main() -> None:
    """Print the table."""
    parser = command_line(ABOUT)
    parser.add_argument("study", help="with stored rows and two or more seeds, in_distribution for example")
    parser.add_argument("--arm", **option("bara-gate", "whose difference"))
    parser.add_argument("--reference", **option("temperature", "to what"))
    parser.add_argument("--metric", **option("nll", "acc, ece, nll or brier"))
    args = parser.parse_args()
    spread = spread_of(rows_of_study(args.study), args.arm, args.reference, args.metric)
    say(
        f"{args.arm} - {args.reference}, {args.metric}, {spread.tasks} tasks, {spread.clusters} clusters: "
        f"standard deviation by seed {spread.seed**0.5:.4f}, by rows {spread.rows**0.5:.4f}"
    )
    show(table(spread))

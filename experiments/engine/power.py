"""How small a difference a study of so many worlds, seeds and rows can show, from the runs of a stored one.

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

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from scipy.optimize import brentq
from scipy.stats import nct
from scipy.stats import t as student

from bara_pyro.cli.terminal import say, show
from bara_pyro.errors import ConfigError, DataError, unknown
from bara_pyro.report import Column, Table
from experiments.engine.arguments import command_line
from experiments.engine.differences import LEVEL, METRICS, averaged
from experiments.engine.rows import RunRows, rows_of_study

WORLDS, SEEDS, ROWS, POWER = (1, 3, 6), (1, 3, 5, 10, 20), (1.0, 4.0), 0.9


@dataclass(frozen=True)
class Spread:
    """What a difference, averaged over the tasks of one world, varies by.

    Attributes:
        seed: its variance by one training of every task.
        rows: its variance by the clusters of rows that are asked.
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
    """Return how often a difference of this size is told from none, on its own side."""
    return float(nct.sf(student.ppf((1 + level) / 2, df), df, abs(difference) / error))


def detectable(error: float, df: float, wanted: float = POWER, level: float = LEVEL) -> float:
    """Return the difference that is told from none so often."""
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
    """Return what is told from none nine times in ten, a row a design."""
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
    parser = command_line(__doc__)
    parser.add_argument("study", help="with stored rows and two or more seeds, in_distribution for example")
    parser.add_argument("--arm", default="bara-gate", help="default: %(default)s")
    parser.add_argument("--reference", default="temperature", help="default: %(default)s")
    parser.add_argument("--metric", default="nll", help="acc, ece, nll or brier; default: %(default)s")
    args = parser.parse_args()
    spread = spread_of(rows_of_study(args.study), args.arm, args.reference, args.metric)
    say(
        f"{args.arm} - {args.reference}, {args.metric}, {spread.tasks} tasks, {spread.clusters} clusters: "
        f"standard deviation by seed {spread.seed**0.5:.4f}, by rows {spread.rows**0.5:.4f}"
    )
    show(table(spread))

"""One arm against another over several worlds: in these worlds, and in worlds as such.

Tasks of different worlds share no residents, so that the interval of these worlds is that of
`experiments.engine.differences` over all pairs of world and task. What a difference would be in a world that
nobody has seen is told by how much it varies between those seen: Student's interval of the averages by world.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student

from bara_pyro.errors import DataError
from experiments.engine.differences import LEVEL, averaged
from experiments.engine.rows import RunRows


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

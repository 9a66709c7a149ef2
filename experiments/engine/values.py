"""What stands in the cells of an experiment's tables: numbers of records, averaged over seeds and tasks.

A value is a number, a pair (mean, standard deviation over seeds), text, or None where there is nothing. It is
infinite where one of its parts is, and "failed" where one of its runs was: the mean of those that survived
would flatter the arm.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from experiments.engine.methods import display as name_of
from experiments.engine.methods import in_order
from experiments.engine.record import Record, number
from experiments.engine.results import Seeds, Study

Value = float | tuple[float, float] | str | None
Read = Callable[[Record], float | None]
"""Takes a number out of a record; None stands for infinity, which JSON cannot hold."""


def display(arm: str) -> str:
    """Return an arm's name as it is printed; what follows a comma is the variant of a method.

    >>> display("bara, phi")
    'BaRA, phi'
    """
    method, comma, variant = arm.partition(", ")
    return f"{name_of(method)}{comma}{variant}"


def fixed(value: Any, digits: int = 1, sign: str = "") -> str:
    """Return a number with so many digits; of a pair the first.

    >>> fixed(75.04), fixed((0.5591, 0.01), 3), fixed(1.06, sign="+"), fixed(-0.0157, 3)
    ('75.0', '0.559', '+1.1', '-0.016')
    """
    text = f"{float(value[0] if isinstance(value, tuple | list) else value):{sign},.{digits}f}"
    return text if float(text.replace(",", "")) else text.lstrip("+-")


def over_seeds(seeds: Seeds, read: Read) -> Value:
    """Return a number of a task's runs: of one seed as it is, of more with its standard deviation."""
    if not seeds:
        return None
    if failed := sum("failed" in record for record in seeds.values()):
        return "failed" if failed == len(seeds) else f"failed {failed}/{len(seeds)}"
    values = [number(read(record)) for record in seeds.values()]
    return values[0] if len(values) == 1 else _with_spread(mean(values), values)


def over_tasks(tasks: Mapping[str, Seeds], names: Sequence[str], read: Read) -> Value:
    """Return the mean over tasks of an arm's means, its spread over the seeds that all tasks have."""
    cells = [over_seeds(tasks.get(name, {}), read) for name in names]
    if len(cells) == 1:
        return cells[0]
    if None in cells:
        return None
    if any(isinstance(cell, str) for cell in cells):
        return "failed"
    average = mean(mean(number(read(record)) for record in tasks[name].values()) for name in names)
    shared = sorted(set.intersection(*(set(tasks[name]) for name in names)))
    by_seed = [mean(number(read(tasks[name][seed])) for name in names) for seed in shared]
    return average if len(by_seed) < 2 else _with_spread(average, by_seed)


def _with_spread(average: float, values: Sequence[float]) -> Value:
    return average if math.isinf(average) else (average, stdev(values))


def score(samples: str, metric: str) -> Read:
    """Return what reads a score under a number of draws."""
    return lambda record: record["metrics"][samples][metric]


def finished(tasks: Mapping[str, Seeds]) -> list[Record]:
    """Return the records of an arm's runs that did not fail."""
    return [record for seeds in tasks.values() for record in seeds.values() if "failed" not in record]


def largest_draws(tasks: Mapping[str, Seeds]) -> str:
    """Return the largest number of draws S that all finished runs of an arm have, "" if none finished."""
    records = finished(tasks)
    return max(set.intersection(*(set(record["metrics"]) for record in records)), key=int) if records else ""


def parameters_of(tasks: Mapping[str, Seeds]) -> int | str | None:
    """Return the number of trainable parameters, from-to where an arm's runs have different ones."""
    counts = {record["parameters"]["trainable"] for record in finished(tasks)}
    if len(counts) > 1:
        return f"{min(counts):,d} to {max(counts):,d}"
    return counts.pop() if counts else None


def gaps(study: Study) -> list[str]:
    """Return a sentence for each arm and task that has fewer seeds than others, or a run that failed."""
    most = max((len(seeds) for tasks in study.arms.values() for seeds in tasks.values()), default=0)
    lines = []
    for arm in in_order(study.arms):
        for task in study.tasks:
            seeds = study.arms[arm].get(task, {})
            done = sum("failed" not in record for record in seeds.values())
            if done < most:
                reasons = dict.fromkeys(r["failed"].rstrip(".") for r in seeds.values() if "failed" in r)
                because = f": {'; '.join(reasons)}" if reasons else ""
                lines.append(f"{display(arm)} on {task} has {done} of {most} seeds{because}")
    return lines

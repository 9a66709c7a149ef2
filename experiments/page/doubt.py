"""Whether a method doubts what it should: the tables of how errors and rows from elsewhere are told.

Computed from the stored rows of a study: `experiments.page.doubt`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bara_pyro.errors import DataError
from bara_pyro.metrics import Interval, TaskDifference, crossed_interval, error_auroc
from bara_pyro.metrics.bootstrap import drawn_auroc, weighted_auroc
from bara_pyro.report import Column, Table
from experiments.engine.differences import LEVEL, RESAMPLES, paired_seeds, same_rows
from experiments.engine.methods import in_order
from experiments.engine.record import Record, entropy
from experiments.engine.results import Study
from experiments.engine.rows import RunRows
from experiments.page.tables import ABOUT, about_columns, arm_rows, interval_cell
from experiments.page.values import display, finished, over_seeds


@dataclass(frozen=True)
class Told:
    """Rows that one run was asked: how much it doubts each (`n`), and which it should doubt (bool, `n`)."""

    arm: str
    seed: int
    doubt: Tensor
    positive: Tensor
    clusters: tuple[str, ...]


def errors(runs: Sequence[RunRows], task: str) -> list[Told]:
    """Return each run's doubt in its answers on its own task, and which of them are wrong.

    Raises:
        DataError: the runs were not scored on the same rows, or not with the same S.
    """
    own = [run for run in runs if run.tested_on == run.task == task]
    samples = same_rows(task, own)
    found = []
    for run in own:
        confidence, top = run.log_probs[samples].max(dim=1)
        found.append(Told(run.arm, run.seed, -confidence, top != run.labels, run.clusters))
    return found


def shifted(runs: Sequence[RunRows], task: str, elsewhere: str) -> list[Told]:
    """Return each run's entropy on its own task's rows and on those of `elsewhere`, which are positive.

    Raises:
        DataError: as of `errors`.
    """
    there = {(run.arm, run.seed): run for run in runs if run.tested_on == elsewhere and run.task == task}
    own = [run for run in runs if run.tested_on == run.task == task and (run.arm, run.seed) in there]
    samples = same_rows(task, own)
    same_rows(elsewhere, list(there.values()))
    found = []
    for run in own:
        pair = [run, there[run.arm, run.seed]]
        doubt = torch.cat([entropy(one.log_probs[samples]) for one in pair])
        positive = torch.arange(len(doubt)) >= len(run.ids)
        found.append(Told(run.arm, run.seed, doubt, positive, (*run.clusters, *pair[1].clusters)))
    return found


def compare_auroc(told: Sequence[Told], reference: str, resamples: int = RESAMPLES) -> dict[str, Interval]:
    """Return the difference of each arm to the reference in AUROC (points), over the seeds that both have.

    Arms and seeds of which one kind of row is missing (all answers right, for example) are left out.
    """
    usable = [one for one in told if one.positive.any() and not one.positive.all()]
    place = {(one.arm, one.seed): i for i, one in enumerate(usable)}
    if not usable:
        return {}
    scores, positive, clusters = (
        [o.doubt for o in usable],
        [o.positive for o in usable],
        usable[0].clusters,
    )
    ones = torch.ones(len(clusters), dtype=torch.float64)
    plain = torch.stack([weighted_auroc(s, p, ones) for s, p in zip(scores, positive, strict=True)])
    drawn = drawn_auroc(scores, positive, clusters, resamples)
    found = {}
    for arm in dict.fromkeys(one.arm for one in usable if one.arm != reference):
        if seeds := paired_seeds(place, arm, reference):
            ours, theirs = ([place[name, seed] for seed in seeds] for name in (arm, reference))
            difference = TaskDifference(
                plain[ours] - plain[theirs], drawn[:, ours] - drawn[:, theirs], Counter(clusters)
            )
            found[arm] = crossed_interval([difference], LEVEL)
    return found


CHANCE = "higher is better; 50 is chance"


def error_table(study: Study, rows: Iterable[RunRows]) -> Table:
    """Return how well low confidence tells wrong answers from right ones, an arm a row, a task a column."""
    own = [run for run in rows if run.tested_on == run.task]
    scores = {(run.hash, str(S)): _error_auroc(run, S) for run in own for S in run.log_probs}
    found = {place: value for place, value in scores.items() if value is not None}
    table = arm_rows(study)
    for row in table:
        for task in study.tasks:
            seeds, samples = study.arms[row["arm"]].get(task, {}), row["samples"]
            known = all((record["config_hash"], samples) in found for record in finished({task: seeds}))
            row[task] = over_seeds(seeds, partial(_at, found, samples)) if known else None
    columns = [Column(task, task, "", ".1f", "max", second=True) for task in study.tasks]
    caption = f"AUROC (%) of telling wrong answers from right ones by low confidence, {CHANCE}"
    return Table([*about_columns(table), *columns], table, caption)


def _error_auroc(run: RunRows, samples: int) -> float | None:
    """Return the AUROC of a run's errors; None where all of its answers are right, or all wrong."""
    try:
        return error_auroc(run.log_probs[samples], run.labels)
    except DataError:
        return None


def _at(found: Mapping[tuple[str, str], float], samples: str, record: Record) -> float:
    return found[record["config_hash"], samples]


def doubt_table(rows: Sequence[RunRows], task: str, reference: str) -> Table:
    """Return the differences to a reference in AUROC: of its errors on a task, and of each shift from it."""
    elsewhere = dict.fromkeys(run.tested_on for run in rows if run.task == task and run.tested_on != task)
    told = {"wrong answers": errors(rows, task)} | {name: shifted(rows, task, name) for name in elsewhere}
    found = {name: compare_auroc(kind, reference) for name, kind in told.items()}
    arms = in_order(dict.fromkeys(arm for kind in found.values() for arm in kind))
    table: list[dict[str, Any]] = [
        {"name": display(arm)} | {name: _cell(kind.get(arm)) for name, kind in found.items()} for arm in arms
    ]
    caption = (
        f"Difference to {display(reference)} in AUROC (points), largest S: wrong answers told from right "
        f"ones by low confidence, rows from elsewhere from those of {task} by entropy; [{100 * LEVEL:g} % "
        "interval] (standard error by seeds, by rows), each by itself, not corrected for their number"
    )
    return Table([ABOUT[0], *(Column(name, name) for name in found)], table, caption)


def _cell(found: Interval | None) -> str | None:
    return None if found is None else interval_cell(vars(found), 1)

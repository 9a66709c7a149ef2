"""Whether a method doubts what it should: the tables of how errors and rows from elsewhere are told.

Computed from the stored rows of a study: `experiments.engine.auroc`.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from bara_pyro.errors import DataError
from bara_pyro.metrics import Interval, error_auroc
from bara_pyro.report import Column, Table
from experiments.engine.auroc import compare_auroc, errors, shifted
from experiments.engine.differences import LEVEL
from experiments.engine.methods import in_order
from experiments.engine.record import Record
from experiments.engine.rows import RunRows
from experiments.engine.study import Study
from experiments.page.tables import ABOUT, about_columns, arm_rows, interval_cell
from experiments.page.values import display, finished, over_seeds

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

"""The tables of studies, of numbers in their records only. The best value is bold, the second best italic."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bara_pyro.metrics.base import METRICS
from bara_pyro.metrics.base import compared as compared_metrics
from bara_pyro.report.table import Column, Table
from experiments.engine.differences import AVERAGE
from experiments.engine.methods import in_order
from experiments.engine.results import Entry, Seeds, Study
from experiments.engine.values import (
    Value,
    display,
    finished,
    fixed,
    largest_draws,
    over_seeds,
    over_tasks,
    parameters_of,
    score,
)

ARROWS = {"max": "↑", "min": "↓"}
ABOUT = (Column("name", "method"), Column("parameters", "params", format=",d"))
GATES = {"phi": "Φ", "theta": "θ", "psi": "Φθ"}
REFERENCE = "lora"
CORRECTED = (
    "Differences have 95 % intervals; better, worse: significant after Holm's correction over the whole study"
)
# Of results from before rows were stored.
UNCORRECTED = (
    "Differences have 95 % intervals for the choice of test rows only, not for the randomness of training"
)


def score_columns(study: Study) -> dict[str, Column]:
    """Return a column for each metric that can be compared and that all records of a study have, by name."""
    stored = [
        scores
        for runs in study.arms.values()
        for record in finished(runs)
        for scores in record["metrics"].values()
    ]
    return {
        name: Column(
            name, metric.heading or name, metric.unit, f".{metric.digits}f", metric.best, second=True
        )
        for name, metric in compared_metrics().items()
        if all(name in scores for scores in stored)
    }


def arms_table(study: Study) -> Table:
    """Return a row an arm: scores averaged over tasks under the largest S, and its NLL minus LoRA's.

    Shares of gates near 0 are shown if every arm has gates.
    """
    rows, scores = [], score_columns(study)
    for arm in in_order(study.arms):
        runs = {task: study.arms[arm].get(task, {}) for task in study.tasks}
        samples = largest_draws(runs)
        row: dict[str, Any] = {"arm": arm, "name": display(arm), "parameters": parameters_of(runs)}
        row |= {metric: over_tasks(runs, study.tasks, score(samples, metric)) for metric in scores}
        row |= {gate: _gate(runs, study.tasks, gate) for gate in GATES}
        rows.append(row)
    columns = [replace(c, heading=f"{c.heading} {ARROWS[str(c.best)]}") for c in scores.values()]
    caption = f"Mean over {len(study.tasks)} tasks" if len(study.tasks) > 1 else "".join(study.tasks)
    if gates := [gate for gate in GATES if rows and all(row[gate] is not None for row in rows)]:
        columns += [Column(gate, GATES[gate], "%", ".1f") for gate in gates]
        caption += f". {', '.join(GATES[gate] for gate in gates)}: share of gates below 0.1"
    if study.comparisons:
        reference = reference_of(study.comparisons)
        found = compared(study.comparisons, reference)
        rows = [{**row, "difference": found.get(row["arm"])} for row in rows]
        columns.append(Column("difference", f"NLL minus {display(reference)}", "nats"))
        caption += f". {kind_of(study.comparisons)}{uncorrected(study.comparisons, reference)}"
    return Table([*ABOUT, *columns], rows, caption)


def reference_of(entries: Sequence[Entry]) -> str:
    """Return the arm that all others are compared with: LoRA if it is there."""
    references = [entry["reference"] for entry in entries]
    return REFERENCE if REFERENCE in references else str(references[0])


def compared(entries: Sequence[Entry], reference: str, metric: str = "nll") -> dict[str, str]:
    """Return arm -> its difference to a reference with its interval, on average or on the only task."""
    found = [entry for entry in entries if entry["reference"] == reference]
    tasks = [entry["task"] for entry in found]
    task = AVERAGE if AVERAGE in tasks else tasks[0]
    marked = kind_of(entries) == CORRECTED
    return {entry["arm"]: difference(entry, metric, marked) for entry in found if entry["task"] == task}


def kind_of(entries: Sequence[Entry]) -> str:
    """Return what the intervals of differences mean."""
    return CORRECTED if "se_rows" in entries[0]["nll"] else UNCORRECTED


def uncorrected(entries: Sequence[Entry], reference: str) -> str:
    """Return which difference in NLL to a reference is the primary contrast; nothing if none is."""
    named = [e["arm"] for e in entries if e["reference"] == reference and e["nll"].get("primary")]
    return f"; the primary contrast ({display(named[0])}) is not corrected" if named else ""


def task_table(study: Study, metric: str) -> Table:
    """Return one score under the largest S: a row an arm, a column a task."""
    rows = []
    for arm in in_order(study.arms):
        runs = study.arms[arm]
        read = score(largest_draws(runs), metric)
        rows.append(
            {"name": display(arm), **{task: over_seeds(runs.get(task, {}), read) for task in study.tasks}}
        )
    c = score_columns(study)[metric]
    columns = [replace(c, key=task, heading=task, unit="") for task in study.tasks]
    return Table([ABOUT[0], *columns], rows, f"{c.title} {ARROWS[str(c.best)]} by task")


def _gate(runs: Mapping[str, Seeds], names: Sequence[str], gate: str) -> Value:
    known = all(gate in record["sparsity"] for record in finished(runs))
    return over_tasks(runs, names, lambda record: record["sparsity"][gate]) if known else None


def difference(entry: Entry, metric: str, marked: bool = True) -> str:
    """Return a difference as value [interval], and if `marked` better or worse if it is significant."""
    found, digits = entry[metric], METRICS[metric].digits
    if found["difference"] is None:
        return f"∞, {found['verdict']}" if found["verdict"] != "unclear" else "–"
    verdict = f" {found['verdict']}" if marked and found["verdict"] != "unclear" else ""
    return f"{interval_cell(found, digits)}{verdict}"


def interval_cell(found: Mapping[str, Any], digits: int) -> str:
    """Return value [interval].

    >>> interval_cell({"difference": -0.0157, "low": -0.02, "high": 0.0001}, 3)
    '−0.016 [−0.020, 0.000]'
    """
    middle, low, high = (
        fixed(found[key], digits, "+").replace("-", "−") for key in ("difference", "low", "high")
    )
    return f"{middle} [{low}, {high}]"

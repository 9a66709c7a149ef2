"""The tables of studies, of numbers in their records only. The best value is bold, the second best italic."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bara_pyro.report import Column, Table
from experiments.engine.differences import AVERAGE, METRICS
from experiments.engine.methods import in_order
from experiments.engine.results import Entry, Seeds, Study
from experiments.page.values import (
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

SCORES = {
    "acc": Column("acc", "ACC", "%", ".1f", "max", second=True),
    "ece": Column("ece", "ECE", "%", ".1f", "min", second=True),
    "nll": Column("nll", "NLL", "nats", ".3f", "min", second=True),
    "brier": Column("brier", "Brier", "", ".3f", "min", second=True),
}
ARROWS = {"max": "↑", "min": "↓"}
ABOUT = (Column("name", "method"), Column("parameters", "params", format=",d"))
GATES = {"phi": "Φ", "theta": "θ", "psi": "Φθ"}
REFERENCE = "lora"
CORRECTED = (
    "Differences have 95 % intervals; better, worse: significant after Holm's correction over the whole study"
)
# Of results from before rows were stored.
UNCORRECTED = (
    "Differences have 95 % intervals over test rows only, too narrow because they ignore the training"
)


def arms_table(study: Study) -> Table:
    """Return a row an arm: scores averaged over tasks under the largest S, and its NLL minus LoRA's.

    Shares of gates near 0 are shown if every arm has gates.
    """
    rows = []
    for arm in in_order(study.arms):
        runs = {task: study.arms[arm].get(task, {}) for task in study.tasks}
        samples = largest_draws(runs)
        row: dict[str, Any] = {"arm": arm, "name": display(arm), "parameters": parameters_of(runs)}
        row |= {metric: over_tasks(runs, study.tasks, score(samples, metric)) for metric in METRICS}
        row |= {gate: _gate(runs, study.tasks, gate) for gate in GATES}
        rows.append(row | {"other": _other_nll(runs, study.tasks)})
    columns = [replace(c, heading=f"{c.heading} {ARROWS[str(c.best)]}") for c in SCORES.values()]
    if rows and all(row["other"] is not None for row in rows):
        columns.append(replace(SCORES["nll"], key="other", heading=f"{_other_split(study)} NLL ↓"))
    caption = f"Mean over {len(study.tasks)} tasks" if len(study.tasks) > 1 else "".join(study.tasks)
    if gates := [gate for gate in GATES if rows and all(row[gate] is not None for row in rows)]:
        columns += [Column(gate, GATES[gate], "%", ".1f") for gate in gates]
        caption += f". {', '.join(GATES[gate] for gate in gates)}: share of gates below 0.1"
    if study.comparisons:
        reference = reference_of(study.comparisons)
        found = compared(study.comparisons, reference)
        rows = [{**row, "difference": found.get(row["arm"])} for row in rows]
        columns.append(Column("difference", f"NLL minus {display(reference)}", "nats"))
        caption += f". {kind_of(study.comparisons)}"
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


def task_table(study: Study, metric: str) -> Table:
    """Return one score under the largest S: a row an arm, a column a task."""
    rows = []
    for arm in in_order(study.arms):
        runs = study.arms[arm]
        read = score(largest_draws(runs), metric)
        rows.append(
            {"name": display(arm), **{task: over_seeds(runs.get(task, {}), read) for task in study.tasks}}
        )
    c = SCORES[metric]
    columns = [replace(c, key=task, heading=task, unit="") for task in study.tasks]
    return Table([ABOUT[0], *columns], rows, f"{c.title} {ARROWS[str(c.best)]} by task")


def shift_tables(study: Study) -> list[Table]:
    """Return two tables: NLL on the task and on each shifted one with its NLL minus LoRA's, and detection.

    Detection is the AUROC of shifted rows among the task's own, by the entropy of the prediction, and by the
    mutual information of answer and latents if draws differ.
    """
    places = [(task, name) for task in study.tasks for name in _shifts(study, task)]
    own = list(dict.fromkeys(task for task, _ in places))
    labels = {(t, name): name if len(own) == 1 else f"{t} to {name}" for t, name in places}
    on_shifts = {entry["task"] for entry in study.comparisons} <= {AVERAGE, *(name for _, name in places)}
    found = (
        compared(study.comparisons, reference_of(study.comparisons))
        if study.comparisons and on_shifts
        else {}
    )
    rows = []
    for arm in in_order(study.arms):
        runs = study.arms[arm]
        samples = largest_draws(runs)
        row: dict[str, Any] = {"name": display(arm), "difference": found.get(arm)}
        row |= {task: over_seeds(runs.get(task, {}), score(samples, "nll")) for task in own}
        for (task, name), label in labels.items():
            there = _shifted(runs.get(task, {}), name)
            row[label] = over_seeds(there, score(samples, "nll"))
            row |= {f"{kind} {label}": _auroc(there, samples, kind) for kind in DETECTORS}
        rows.append(row)
    headings = {task: f"{task} (own)" for task in own} | {label: label for label in labels.values()}
    columns = [replace(SCORES["nll"], key=key, heading=words, unit="") for key, words in headings.items()]
    caption = "NLL (nats) ↓ on the task's own test rows and on shifted rows"
    if found:
        columns.append(Column("difference", f"minus {display(reference_of(study.comparisons))}"))
        caption += f". {kind_of(study.comparisons)}; they are means over the shifts"
    detected = [
        Column(f"{kind} {label}", f"{heading}, {label}", "", ".1f", "max", second=True)
        for kind, heading in DETECTORS.items()
        for label in labels.values()
    ]
    about = (
        "AUROC (%) ↑ of shifted rows against the task's own, by entropy and mutual information; 50: chance"
    )
    return [Table([ABOUT[0], *columns], rows, caption), Table([ABOUT[0], *detected], rows, about)]


DETECTORS = {"entropy": "entropy", "mutual_information": "mutual information"}


def _shifts(study: Study, task: str) -> list[str]:
    records = [r for tasks in study.arms.values() for r in finished({task: tasks.get(task, {})})]
    return list(dict.fromkeys(name for record in records for name in record["shifted"]))


def _shifted(seeds: Seeds, name: str) -> Seeds:
    """Return records with the scores and the `auroc` of a shifted task, for the seeds tested on it."""
    return {
        seed: record if "failed" in record else {**record, **record["shifted"][name]}
        for seed, record in seeds.items()
        if "failed" in record or name in record["shifted"]
    }


def _auroc(seeds: Seeds, samples: str, kind: str) -> Value:
    known = all(kind in record["auroc"][samples] for record in finished({"": seeds}))
    return over_seeds(seeds, lambda record: record["auroc"][samples][kind]) if known else None


def _other_nll(runs: Mapping[str, Seeds], names: Sequence[str]) -> Value:
    """Return the NLL of an arm on the other split, mean over tasks; None where a run was not scored there."""
    if not all("other_split" in record for record in finished(runs)):
        return None
    return over_tasks(runs, names, lambda record: record["other_split"]["nll"])


def _other_split(study: Study) -> str:
    return next((r["other_split"]["split"] for r in study.finished if "other_split" in r), "")


def _gate(runs: Mapping[str, Seeds], names: Sequence[str], gate: str) -> Value:
    known = all(gate in record["sparsity"] for record in finished(runs))
    return over_tasks(runs, names, lambda record: record["sparsity"][gate]) if known else None


def difference(entry: Entry, metric: str, marked: bool = True) -> str:
    """Return a difference as value [interval], and if `marked` better or worse if it is significant."""
    found, digits = entry[metric], 3 if metric in ("nll", "brier") else 1
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

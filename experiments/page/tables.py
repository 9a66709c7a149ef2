"""The tables of an experiment: methods by tasks, shifts, variants, comparisons; all numbers from records.

Best values are bold and second best italic, as the paper marks them bold and underlined.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bara_pyro.report import Column, Table
from experiments.engine.differences import AVERAGE, METRICS
from experiments.engine.methods import in_order
from experiments.engine.record import Record
from experiments.engine.results import Arms, Seeds, Study
from experiments.page.values import (
    Value,
    display,
    draws_of,
    finished,
    fixed,
    over_seeds,
    over_tasks,
    parameters_of,
    score,
    spread_rows,
)

SCORES = {
    "acc": Column("acc", "ACC", "%", ".1f", "max", second=True),
    "ece": Column("ece", "ECE", "%", ".1f", "min", second=True),
    "nll": Column("nll", "NLL", "nats", ".3f", "min", second=True),
    "brier": Column("brier", "Brier", "", ".3f", "min", second=True),
}
ARROWS = {"max": "↑", "min": "↓"}
ABOUT = (Column("name", "method"), Column("parameters", "params", format=",d"), Column("S", "S", format="d"))
GATES = {"phi": "Φ", "theta": "θ", "psi": "Ψ"}
DETECTORS = {"entropy": "entropy", "mutual_information": "MI"}
# In a comparison; ECE and accuracy in points, so that they are not taken for shares.
DIGITS = {"acc": 1, "ece": 1, "nll": 3, "brier": 3}


def arm_rows(study: Study) -> list[dict[str, Any]]:
    """Return the beginnings of rows: an arm each, or one for each number of draws where that matters.

    `arm` is the arm, `name` its printed name, `S` the number of draws (None where it changes nothing) and
    `samples` that under which its records hold the scores.
    """
    rows = []
    for arm in in_order(study.arms):
        tasks = study.arms[arm]
        about = {"arm": arm, "name": display(arm), "parameters": parameters_of(tasks)}
        numbers = draws_of(tasks) or [""]
        rows += [{**about, "S": int(s) if len(numbers) > 1 else None, "samples": s} for s in numbers]
    return rows


def score_tables(
    study: Study, metrics: Sequence[str] = METRICS, average: Sequence[str] | None = None
) -> list[Table]:
    """Return a table a metric: a row an arm (and S), a column a task, and the average (over all if None)."""
    return [score_table(study, metric, study.tasks if average is None else average) for metric in metrics]


def score_table(study: Study, metric: str, average: Sequence[str]) -> Table:
    """Return the table of one metric."""
    rows = arm_rows(study)
    for row in rows:
        runs, read = study.arms[row["arm"]], score(row["samples"], metric)
        row |= {task: over_seeds(runs.get(task, {}), read) for task in study.tasks}
        row[AVERAGE] = over_tasks(runs, average, read)
    c = SCORES[metric]
    names = [*study.tasks, AVERAGE] if len(average) > 1 else study.tasks
    columns = [replace(c, key=name, heading=name, unit="") for name in names]
    better = "higher" if c.best == "max" else "lower"
    return Table([*about_columns(rows), *columns], rows, f"{c.title}, {better} is better")


def about_columns(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns before the scores: name, parameters, and S only where it says something."""
    return [column for column in ABOUT if column.key != "S" or any(row["S"] is not None for row in rows)]


def spread_table(
    entries: Iterable[Mapping[str, Any]], columns: Sequence[Column], by: Sequence[str], caption: str = ""
) -> Table:
    """Return a row for each combination of the values `by`; other columns are spreads over its entries."""
    keys = [column.key for column in columns if column.key not in by]
    return Table(columns, spread_rows(entries, by, keys), caption)


def sorted_by(table: Table, place: Callable[[Any], Any]) -> Table:
    """Return a table with its rows in another order."""
    return replace(table, rows=sorted(table.rows, key=place))


# Shifts ----------------------------------------------------------------------------------------------------


def with_shifts(study: Study) -> Study:
    """Return the study with each shifted task as a task of its own, without tasks that nothing shifts from.

    A record there is that of the run, with the scores and the `auroc` of the shifted task.
    """
    sources = [task for task in study.tasks if _shifts(study, task)]
    arms: Arms = {arm: {} for arm in study.arms}
    for source in sources:
        for arm, tasks in study.arms.items():
            seeds = tasks.get(source, {})
            arms[arm][source] = seeds
            for name in _shifts(study, source):
                label = name if len(sources) == 1 else f"{source} to {name}"
                views = {seed: _shifted(record, name) for seed, record in seeds.items()}
                arms[arm][label] = {seed: view for seed, view in views.items() if view is not None}
    return replace(study, arms=arms)


def _shifts(study: Study, task: str) -> list[str]:
    records = [r for tasks in study.arms.values() for r in finished({task: tasks.get(task, {})})]
    return list(dict.fromkeys(name for record in records for name in record["shifted"]))


def _shifted(record: Record, name: str) -> Record | None:
    if "failed" in record:
        return record
    return {**record, **record["shifted"][name]} if name in record["shifted"] else None


def shift_tables(study: Study, metrics: Sequence[str] = METRICS[:3]) -> list[Table]:
    """Return a table a metric: the task trained on, each shift, the average over shifts; then AUROC."""
    wide = with_shifts(study)
    shifts = [task for task in wide.tasks if task not in study.tasks]
    tables = score_tables(wide, metrics, shifts)
    tables = [replace(t, caption=f"{t.caption}; the average is over the shifts") for t in tables]
    return [*tables, auroc_table(wide, shifts)]


def auroc_table(study: Study, shifts: Sequence[str]) -> Table:
    """Return how well the shifted rows are told from the task's own; `study` comes from `with_shifts`."""
    rows = arm_rows(study)
    columns = []
    for kind, heading in DETECTORS.items():
        for name in shifts:
            columns.append(Column(f"{kind} {name}", f"{heading}, {name}", "", ".1f", "max", second=True))
            for row in rows:
                row[f"{kind} {name}"] = _auroc(study.arms[row["arm"]].get(name, {}), row["samples"], kind)
    caption = (
        "AUROC (%) of telling shifted rows from the task's own, by predictive entropy and by the mutual "
        "information (MI) of answer and latents, higher is better; 50 is chance"
    )
    return Table([*about_columns(rows), *columns], rows, caption)


def _auroc(seeds: Seeds, samples: str, kind: str) -> Value:
    known = all(kind in record["auroc"][samples] for record in finished({"": seeds}))
    return over_seeds(seeds, lambda record: record["auroc"][samples][kind]) if known else None


# Variants --------------------------------------------------------------------------------------------------


def variants_table(study: Study, tasks: Sequence[str] | None = None) -> Table:
    """Return a row an arm: scores under the largest S and sparsity of the gates, mean over the tasks."""
    names = study.tasks if tasks is None else list(tasks)
    rows = []
    for arm in in_order(study.arms):
        runs = {name: study.arms[arm].get(name, {}) for name in names}
        samples = (draws_of(runs) or [""])[-1]
        row: dict[str, Any] = {"arm": arm, "name": display(arm), "parameters": parameters_of(runs)}
        row |= {metric: over_tasks(runs, names, score(samples, metric)) for metric in METRICS}
        row["other"] = other_nll(runs, names)
        rows.append(row | {gate: _gate(runs, names, gate) for gate in GATES})
    scores = [replace(c, heading=f"{c.heading} {ARROWS[str(c.best)]}") for c in SCORES.values()]
    if all(row["other"] is not None for row in rows):
        scores.append(replace(SCORES["nll"], key="other", heading=f"{other_split(study)} NLL ↓"))
    shown = [Column(g, h, "%", ".1f") for g, h in GATES.items() if any(row[g] is not None for row in rows)]
    over = f"mean over {', '.join(names)}" if len(names) > 1 else names[0]
    gates = f"; {', '.join(c.heading for c in shown)}: gates below 0.1" if shown else ""
    return Table([*ABOUT[:2], *scores, *shown], rows, f"{over}{gates}")


def other_nll(runs: Mapping[str, Seeds], names: Sequence[str]) -> Value:
    """Return the NLL of an arm on the other split, mean over tasks; None where a run was not asked."""
    if not all("other_split" in record for record in finished(runs)):
        return None
    return over_tasks(runs, names, lambda record: record["other_split"]["nll"])


def other_split(study: Study) -> str:
    """Return the name of the split that runs were asked besides their own, "" if none was."""
    return next((r["other_split"]["split"] for r in study.finished if "other_split" in r), "")


def selection(study: Study) -> str:
    """Return a sentence on whether the best arm by validation NLL is the best on test rows; "" if not known.

    The ranks are of the mean over tasks and seeds.
    """
    rows = variants_table(study).rows
    pairs = [(_mean(row["nll"]), _mean(row["other"])) for row in rows]
    if len(rows) < 2 or any(None in pair for pair in pairs):
        return ""
    tested = 0 if other_split(study) == "validation" else 1
    chosen = min(range(len(rows)), key=lambda i: pairs[i][1 - tested] or 0.0)
    order = sorted(range(len(rows)), key=lambda i: pairs[i][tested] or 0.0)
    place = 1 + order.index(chosen)
    behind = (pairs[chosen][tested] or 0.0) - (pairs[order[0]][tested] or 0.0)
    best = "the best" if place == 1 else f"number {place}, {behind:.3f} nats behind {rows[order[0]]['name']}"
    return f"Best by validation NLL: {rows[chosen]['name']}; on test rows it is {best} of {len(rows)}."


def _mean(value: Value) -> float | None:
    number = value[0] if isinstance(value, tuple) else value
    return number if isinstance(number, float) else None


def _gate(runs: Mapping[str, Seeds], names: Sequence[str], gate: str) -> Value:
    known = all(gate in record["sparsity"] for record in finished(runs))
    return over_tasks(runs, names, lambda record: record["sparsity"][gate]) if known else None


# Comparisons -----------------------------------------------------------------------------------------------


def comparison_table(entries: Sequence[Mapping[str, Any]], reference: str, task: str = AVERAGE) -> Table:
    """Return the differences to a reference on one task or on average: a row an arm, a column a metric."""
    found = [e for e in entries if (e["reference"], e["task"]) == (reference, task)]
    rows = [{"name": display(e["arm"])} | {m: difference(e, m) for m in METRICS} for e in _in_order(found)]
    columns = [Column(m, f"{c.heading} {ARROWS[str(c.best)]}", _unit(m)) for m, c in SCORES.items()]
    where = "average over the tasks" if task == AVERAGE else task
    return Table([ABOUT[0], *columns], rows, f"Difference to {display(reference)}, {where}")


def comparison_by_task(entries: Sequence[Mapping[str, Any]], reference: str, metric: str) -> Table:
    """Return the differences to a reference in one metric: a row an arm, a column a task."""
    found = [e for e in entries if e["reference"] == reference]
    tasks = list(dict.fromkeys(e["task"] for e in found if e["task"] != AVERAGE))
    names = [*tasks, *(AVERAGE for e in found[:1] if any(e["task"] == AVERAGE for e in found))]
    rows: dict[str, dict[str, Any]] = {}
    for e in _in_order(found):
        row = rows.setdefault(e["arm"], {"name": display(e["arm"])})
        row[e["task"]] = difference(e, metric, spread=False)
    unit = f" ({_unit(metric)})" if _unit(metric) else ""
    caption = f"Difference to {display(reference)} in {SCORES[metric].heading}{unit}"
    return Table([ABOUT[0], *(Column(name, name) for name in names)], list(rows.values()), caption)


def difference(entry: Mapping[str, Any], metric: str, spread: bool = True) -> str:
    """Return a difference in words: value [interval] (standard error by seeds, by rows) verdict."""
    found, digits = entry[metric], DIGITS[metric]
    if found["difference"] is None:
        return f"∞, {found['verdict']}" if found["verdict"] != "unclear" else "–"
    return f"{interval_cell(found, digits, spread)} {found['verdict']}"


def interval_cell(found: Mapping[str, Any], digits: int, spread: bool = True) -> str:
    """Return value [interval] (standard error by seeds, by rows), the errors if known and asked."""
    middle, low, high = (
        fixed(found[key], digits, "+").replace("-", "−") for key in ("difference", "low", "high")
    )
    beside = ""
    if spread and "se_rows" in found:
        errors = ("–" if found[e] is None else fixed(found[e], digits) for e in ("se_seeds", "se_rows"))
        beside = f" ({', '.join(errors)})"
    return f"{middle} [{low}, {high}]{beside}"


def _unit(metric: str) -> str:
    return {"%": "points"}.get(SCORES[metric].unit, SCORES[metric].unit)


def _in_order(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    arms = list(dict.fromkeys(e["arm"] for e in entries))
    place = {arm: i for i, arm in enumerate(in_order(arms))}
    return sorted(entries, key=lambda e: place[e["arm"]])

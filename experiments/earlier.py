"""The studies of before there were records: each is a file of reports by name, and a section of the page."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bara_pyro.cli.scores import score_table
from bara_pyro.report import Column, Table, markdown
from bara_pyro.runs.config import load_config
from bara_pyro.runs.store import read_json
from experiments.values import Value, over_seeds, score

REAL = """### Real rows, a real language model

A Llama of 260 thousand parameters trained on children's stories (5 layers, width 64), {steps} steps of 4 rows
at rate 1e-3, r = 8, official splits, letters as answers. It knows nothing of science or current affairs: on
the paper's sets the fair answer is "I do not know", and a good method says so (NLL near log C, small ECE).
ag_news it can learn in part, and there BaRA learns more slowly than LoRA: noise of the order of the gates
themselves has to be averaged out. Nothing was tuned here.
"""

SELECTED = """### Each method at the learning rate that validation chose

Test rows, {steps} steps. Every method had the same budget: four rates and the seeds of the sweep above; the
lowest NLL on validation rows wins (`experiments/selected.py`).
"""

SWEEP = """### Learning rates, before and after the mend ({task})

{steps} steps on rows of train, scored on rows set aside from it, S = 10; seeds: {seeds}. "before" is
Algorithm 1 as printed (noise levels random around ln 2, no cap, one rate for all, the amortiser sees its
input as it is), "after" are the defaults; docs/decisions.md has the mechanism.
"""

COLUMNS = (
    Column("task", "task"),
    Column("method", "method"),
    Column("lr", "lr", format="g"),
    Column("S", "S", format="d"),
    Column("seeds", "seeds", format="d"),
    Column("acc", "acc", format=".1f"),
    Column("ece", "ECE", format=".1f"),
    Column("nll", "NLL", format=".3f"),
    Column("brier", "Brier", format=".3f"),
)


def _cell(reports: Sequence[dict[str, Any]], samples: str, key: str) -> Value:
    """Return a score over the seeds, as the tables of all experiments have it."""
    return over_seeds(dict(enumerate(reports)), score(samples, key))


def scores(results: dict[str, Any], introduction: str) -> list[str]:
    """Return a table of runs named "task method seed": mean and spread over the seeds there are."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for name, report in results.items():
        task, method, _ = name.split(" ")
        groups[task, method].append(report)
    rows = []
    for (task, method), reports in groups.items():
        settings = reports[0]["settings"]
        run = {"task": task, "method": method, "lr": settings.get("train.lr", load_config().train.lr)}
        for samples in ("0",) if method == "lora" else ("0", "10"):
            row = {key: _cell(reports, samples, key) for key in ("acc", "ece", "nll", "brier")}
            rows.append({**run, "S": int(samples), "seeds": len(reports), **row})
    return [introduction.format(steps=settings["train.steps"]), markdown(Table(COLUMNS, rows))]


def sweep(task: str, results: dict[str, Any]) -> list[str]:
    """Return a table for accuracy and one for NLL: a row an arm, a column a rate."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for name, report in results.items():
        arm, rate, _ = name.rsplit(" ", 2)
        groups[arm, rate].append(report)
    arms, rates = (list(dict.fromkeys(names)) for names in zip(*groups, strict=True))
    first = next(iter(groups.values()))
    lines = [SWEEP.format(task=task, steps=first[0]["settings"]["train.steps"], seeds=len(first))]
    for key, heading, digits in (("acc", "accuracy", ".1f"), ("ece", "ECE", ".1f"), ("nll", "NLL", ".3f")):
        columns = [Column("arm", heading), *(Column(rate, f"lr {rate}", format=digits) for rate in rates)]
        rows = [{"arm": arm, **{r: _cell(groups[arm, r], "10", key) for r in rates}} for arm in arms]
        lines.append(markdown(Table(columns, rows)))
    return lines


def demo(results: dict[str, Any]) -> list[str]:
    """Return the table that the demonstration printed."""
    table = markdown(score_table(results["rows"]))
    return [f"### The demonstration\n\n`make demo`: {results['task']}, one seed.\n", table]


def earlier_sections(results: Path) -> list[str]:
    """Return the lines of the sections whose files are there, under one heading; none without any."""
    lines = []
    for name, write in PAGES.items():
        path = results / f"{name}.json"
        if path.exists():
            lines += write(read_json(path))
    return ["## Earlier studies\n", *lines] if lines else []


PAGES: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "demo": demo,
    "lr_sweep_micro-wgs": partial(sweep, "micro-wgs"),
    "lr_sweep_ag_news": partial(sweep, "ag_news"),
    "selected": partial(scores, introduction=SELECTED),
    "real_rows": partial(scores, introduction=REAL),
}

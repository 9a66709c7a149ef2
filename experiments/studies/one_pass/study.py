"""One forward in place of many draws: a temperature for every row, fitted to draws on training rows.

    python -m experiments one_pass

Default settings at one rate, three times the steps of the other experiments. Of each fitted model the test
rows are predicted at the mean of its latents, by draws, and in one pass (docs/one_pass.md).
"""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bara_pyro.metrics import evaluate, posterior_predictive
from bara_pyro.report import Column, Table
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.system import System
from experiments.engine.arguments import experiment_parser, run_settings
from experiments.engine.results import Results, distinct, having
from experiments.engine.run import about_runs, read_off
from experiments.engine.sweep import Job
from experiments.page.parts import Part
from experiments.page.spec import entry_study, shared_facts
from experiments.page.values import display, spread

METHODS, TASKS = ("bara-gate", "bara", "blob"), ("micro-wgs", "micro-arcc")
FEW, MANY = 10, 32
READINGS = {
    "mean": "mean of the latents",
    "few": f"S = {FEW}",
    "many": f"S = {MANY}",
    "one": "one pass",
}
SCORES = {"nll": ("NLL, nats", ".4f"), "ece": ("ECE, %", ".1f"), "acc": ("accuracy, %", ".1f")}


def look(system: System, args: Namespace) -> dict[str, Any]:
    """Return the scores of a fitted system's test rows: `nll`, `ece` and `acc` of each of `READINGS`."""
    split = system.split("test")
    labels = torch.tensor(split.labels)
    found = {"one": draw(system, split, 0)}
    many = draw(system, split, MANY)
    one = system.model.one_pass
    if one is None:
        raise LookupError("The run has no one-pass predictive.")
    with torch.no_grad():
        one.weights.zero_()  # the mean of the latents as it is
    found |= {"mean": draw(system, split, 0), "few": many[:FEW], "many": many}
    return {name: _scores(values, labels) for name, values in found.items()}


def _scores(draws: Tensor, labels: Tensor) -> dict[str, float]:
    found = evaluate(posterior_predictive(draws), labels)
    return {name: found[name] for name in SCORES}


def main() -> None:
    """Train what is missing, look, write."""
    parser = experiment_parser(__doc__, runs="runs/one_pass", methods=METHODS, tasks=TASKS, steps=3000)
    args = parser.parse_args()
    jobs = {
        (method, task, seed): Job(
            run_settings(args, {"method": method, "task.name": task, "seed": seed, "adapter.one_pass": True})
        )
        for seed in range(args.seeds)
        for task in args.tasks
        for method in args.methods
    }
    about = about_runs(args, few=FEW, many=MANY)
    read_off("one_pass", jobs, ("method", "task", "seed"), look, about, args)


def parts(results: Results) -> list[Part]:
    """Return a table a score, and how far one pass is from many draws."""
    entries = list(results.entries.values())
    tasks, methods = distinct(entries, "task"), distinct(entries, "method")
    rows: list[Mapping[str, object]] = []
    for method in methods:
        for reading, words in READINGS.items():
            row: dict[str, object] = {"method": display(method), "reading": words}
            for task in tasks:
                own = having(entries, method=method, task=task)
                for score in SCORES:
                    row[f"{task} {score}"] = spread([entry[reading][score] for entry in own])
                row[f"{task} excess"] = spread([excess(entry, reading) for entry in own])
            rows.append(row)
    tables = []
    shown = {**SCORES, "excess": (f"NLL above that of S = {MANY}, %", ".2f")}
    for score, (words, digits) in shown.items():
        columns = [Column("method", "method"), Column("reading", "prediction")]
        columns += [Column(f"{task} {score}", task, format=digits) for task in tasks]
        tables.append(Table(columns, rows, words))
    return list(tables)


def excess(entry: Mapping[str, Any], reading: str) -> float:
    """Return how far the NLL of a reading is above that of many draws, percent of it."""
    return 100 * (entry[reading]["nll"] / entry["many"]["nll"] - 1)


def facts(results: Results) -> dict[str, Any]:
    """Return what the question names."""
    return {**shared_facts(results), "tasks": " and ".join(distinct(results.entries.values(), "task"))}


QUESTION = """\
Can one forward stand for many? Test rows of {tasks} ({model}, {steps:,} training steps, all else by default,
{seeds}) at the mean of the latents, by {few} and {many} draws, and in one pass: the logits at the mean, with
a temperature for every row that was fitted to {many} draws on training rows without their labels.
"""
STUDY = entry_study("One pass", QUESTION, main, parts, facts=facts, order=14)

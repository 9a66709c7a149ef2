"""One forward in place of many draws: a temperature for every row, fitted to draws on training rows.

    python -m experiments one_pass

Default settings at one rate, three times the steps of the other experiments. Of each fitted model the test
rows are predicted at the mean of its latents, by draws, and in one pass (docs/one_pass.md).
"""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import torch

from bara_pyro.metrics import evaluate, posterior_predictive
from bara_pyro.report import Column, Table
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.system import System
from experiments.engine.results import Results, distinct, having
from experiments.page.parts import Folded, Part
from experiments.page.spec import jobs_of, look_study
from experiments.page.values import display, spread

FEW, MANY = 10, 32
READINGS = {
    "mean": "mean of the latents",
    "few": f"S = {FEW}",
    "many": f"S = {MANY}",
    "one": "one pass",
}
SCORES = {"nll": ("NLL, nats", ".4f"), "ece": ("ECE, %", ".1f"), "acc": ("accuracy, %", ".1f")}
SETUP = """\
Test rows of {tasks} are predicted in four ways ({model}, {steps:,} training steps, defaults otherwise,
{seeds}): at the mean of the latents, by {few} draws, by {many} draws, and in one pass. One pass divides the
logits at the mean by a temperature for every row, fitted to {many} draws on training rows without their
labels.
"""


def look(system: System, args: Namespace) -> dict[str, Any]:
    """Return the scores of a fitted system's test rows: `nll`, `ece` and `acc` of each of `READINGS`."""
    split = system.split("test")
    draws = {"one": draw(system, split, 0), "many": draw(system, split, MANY)}
    one = system.corrections.one_pass
    if one is None:
        raise LookupError("The run has no one-pass predictive.")
    with torch.no_grad():
        one.weights.zero_()  # the mean of the latents as it is
    draws |= {"mean": draw(system, split, 0), "few": draws["many"][:FEW]}
    labels = torch.tensor(split.labels)
    scores = {name: evaluate(posterior_predictive(values), labels) for name, values in draws.items()}
    return {name: {key: found[key] for key in SCORES} for name, found in scores.items()}


def parts(results: Results) -> list[Part]:
    """Return how far each prediction is from many draws, and a table for each score."""
    entries = list(results.entries.values())
    tasks = distinct(entries, "task")
    rows: list[Mapping[str, object]] = []
    for method in distinct(entries, "method"):
        for reading, words in READINGS.items():
            row: dict[str, object] = {"method": display(method), "reading": words}
            for task in tasks:
                own = having(entries, method=method, task=task)
                for score in SCORES:
                    row[f"{task} {score}"] = spread([entry[reading][score] for entry in own])
                row[f"{task} excess"] = spread([excess(entry, reading) for entry in own])
            rows.append(row)
    tables: list[Table] = []
    for score, (words, digits) in {"excess": (f"NLL above that of S = {MANY}, %", ".2f"), **SCORES}.items():
        columns = [Column("method", "method"), Column("reading", "prediction")]
        columns += [Column(f"{task} {score}", task, format=digits) for task in tasks]
        tables.append(Table(columns, rows, words))
    return [tables[0], Folded("Scores", tables[1:])]


def excess(entry: Mapping[str, Any], reading: str) -> float:
    """Return how far the NLL of a reading is above that of many draws, percent of it."""
    return 100 * (entry[reading]["nll"] / entry["many"]["nll"] - 1)


STUDY = look_study(
    "one_pass",
    __doc__,
    "Can one forward pass replace many posterior draws?",
    SETUP,
    look,
    parts,
    jobs=lambda args: jobs_of(args, {"adapter.one_pass": True}, own=lambda method: {}),
    runs="runs/one_pass",
    methods=("bara-gate", "bara", "blob"),
    tasks=("micro-wgs", "micro-arcc"),
    steps=3000,
    constants={"few": FEW, "many": MANY},
)

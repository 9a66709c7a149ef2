"""Which rows are worth labelling? Training sets grown by acquisition, scored after each round.

    python -m experiments active

Starts from rows drawn at random, trains, asks rows of the pool that were drawn at random for this round,
takes those that an acquisition chooses, and trains again from scratch. All acquisitions of a method and seed
start from the same rows and the same run, and choose their first batch among the same candidates.
"""

import random
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, get_args

import torch
from matplotlib.figure import Figure

from bara_pyro.cli.terminal import say
from bara_pyro.data import Example, Task
from bara_pyro.errors import ConfigError
from bara_pyro.extras.active.acquire import Pool, acquire, ask_pool
from bara_pyro.lm.loading import load_backbone
from bara_pyro.metrics import evaluate
from bara_pyro.report import Column, Table
from bara_pyro.report.style import dress, line_style, new_figure
from bara_pyro.runs.asked import ask
from bara_pyro.runs.config import load_config
from bara_pyro.runs.rows import load_data
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train
from bara_pyro.types import Acquisition
from experiments.engine.arguments import RUNS, command_line, option
from experiments.engine.results import Results, distinct, having, results_option, resumed
from experiments.page.figures import PAGE, legend_below, marked
from experiments.page.parts import Folded, Part, Picture
from experiments.page.spec import entry_study
from experiments.page.tables import interval_cell
from experiments.page.values import Value, display, spread, spread_rows, student

RANDOM = "random"
METRICS = {"nll": ("NLL", "nats", 3), "acc": ("accuracy", "points", 1)}
Entries = Sequence[dict[str, Any]]
TASK = "micro-obqa"
METHODS = ("bara-gate", "ensemble")
ACQUISITIONS: tuple[Acquisition, ...] = get_args(Acquisition)
SAMPLES = 10  # draws that test rows are scored with
Rows = tuple[Example, ...]


def candidates(task: Task, labelled: Sequence[Example], number: int, seed: int) -> Rows:
    """Return rows of the pool that may be chosen now: drawn at random from those without a label."""
    known = {row.id for row in labelled}
    left = [row for row in task.train if row.id not in known]
    return tuple(random.Random(f"active {seed} {len(labelled)}").sample(left, number))


def trained(rows: Sequence[Example], place: str, method: str, seed: int, args: Namespace) -> System:
    """Return a method trained on these rows, or read back where that was done."""
    settings = {"method": method, "task.name": TASK, "seed": seed, "train.steps": args.steps}
    config = load_config(overrides=settings)
    system = build_system(config, args.backbone, replace(args.task, train=tuple(rows)))
    train(system, args.runs / f"{method}-{seed}" / place, resume=True)
    return system


def scored(system: System) -> dict[str, float]:
    """Return the scores of the test rows."""
    asked = ask(system, system.task.test, "test", samples=SAMPLES)
    return evaluate(asked.log_probs, asked.labels, asked.truth)


def grown(
    start: Sequence[Example],
    first: tuple[System, Pool],
    by: Acquisition,
    method: str,
    seed: int,
    args: Namespace,
) -> list[dict[str, Any]]:
    """Return what is known after each round: `labelled` (rows), `scores`, and `batch`, what is chosen next.

    Args:
        start: the rows to start from.
        first: the run on these, and what it says of the first candidates.
        by: the acquisition.
        method: to train, as `seed`.
        seed: of all that is drawn.
        args: of the command.
    """
    labelled, (system, pool) = tuple(start), first
    found: list[dict[str, Any]] = []
    while True:
        found.append({"labelled": len(labelled), "scores": scored(system), "batch": None})
        if len(found) == args.rounds:
            return found
        acquired = acquire(pool, args.count, by=by, seed=seed)
        clusters = {row.cluster for row in acquired.examples}
        found[-1]["batch"] = {**acquired.summary, "residents": len(clusters)}
        labelled = (*labelled, *acquired.examples)
        system = trained(labelled, f"{by}-{len(labelled)}", method, seed, args)
        if len(found) < args.rounds - 1:
            pool = asked_pool(system, labelled, seed, args)


def asked_pool(system: System, labelled: Sequence[Example], seed: int, args: Namespace) -> Pool:
    """Return what a run says of the candidates of a round."""
    rows = candidates(args.task, labelled, args.candidates, seed)
    return ask_pool(system, rows, samples=args.samples, seed=seed)


def main() -> None:
    """Run what is missing and write the results."""
    parser = command_line(__doc__)
    add = parser.add_argument
    add("--methods", **option(METHODS, "to train", metavar="NAME"))
    add("--by", **option(ACQUISITIONS, "acquisitions", metavar="NAME", choices=ACQUISITIONS))
    add("--seeds", **option(3, "repeat with the seeds 0 to N - 1"))
    add("--start", **option(40, "rows to start from"))
    add("--count", **option(80, "rows a batch"))
    add("--rounds", **option(4, "trainings in a row"))
    add("--candidates", **option(300, "rows of the pool to choose a batch among"))
    add("--steps", **option(400, "training steps a round"))
    add("--samples", **option(16, "draws S that rows are chosen by"))
    add("--runs", **option(Path("runs/active"), RUNS, metavar="DIR", type=Path))
    results_option(parser)
    run(parser.parse_args())


def run(args: Namespace) -> None:
    """Do the entries that a results file lacks, writing it after each."""
    torch.set_num_threads(1)
    names = ("start", "count", "rounds", "candidates", "steps", "samples")
    results = resumed("active", args.out, {"task": TASK, **{name: getattr(args, name) for name in names}})
    args.task = load_data(load_config(overrides={"task.name": TASK}))
    if args.start + (args.rounds - 2) * args.count + args.candidates > len(args.task.train):
        raise ConfigError(
            f"The {len(args.task.train):,} training rows of {TASK} do not last for {args.candidates} "
            "candidates in the last round: lower --candidates, --count or --rounds."
        )
    args.backbone = load_backbone("microworld")
    for seed in range(args.seeds):
        for method in args.methods:
            missing = [by for by in args.by if f"{method} {by} {seed}" not in results.entries]
            if not missing:
                continue
            start = candidates(args.task, (), args.start, seed)
            system = trained(start, "start", method, seed, args)
            first = system, asked_pool(system, start, seed, args)
            for by in missing:
                rounds = grown(start, first, by, method, seed, args)
                results.add(
                    f"{method} {by} {seed}", {"method": method, "by": by, "seed": seed, "rounds": rounds}
                )
                last = rounds[-1]["scores"]
                say(f"{method} {by} {seed}: {last['acc']:.1f} %, {last['nll']:.3f} nats")
    say(f"Written to {results.path}: python -m experiments report --out {args.out}")


# The page --------------------------------------------------------------------------------------------------

SETUP = """\
A training set of {task} grows: {start} random rows first, then {count} in each round, {rounds} trainings
from scratch in all. Every training has {steps} steps with the default settings of its method ({seeds}).
Each round chooses among {candidates} rows drawn at random from the pool, by {samples} draws of the run so
far. An ensemble has its three members; a draw of BaRA's Φ is averaged over four of θ. All acquisitions of
a method and seed start from one run and choose their first batch among the same candidates. Scores are of
the test rows, with ten draws. The study is small: few large batches, equal steps for all sizes, no
split-half calibration, one task.
"""

SCORES = (
    Column("method", "method"),
    Column("labelled", "labelled rows", format=",d"),
    Column("by", "by"),
    Column("nll", "NLL", "nats", ".3f"),
    Column("acc", "accuracy", "%", ".1f"),
)

DIFFERENCES = (
    Column("method", "method"),
    Column("by", "by"),
    Column("nll", "NLL, mean of rounds", "nats"),
    Column("acc", "accuracy, mean", "points"),
    Column("last_nll", "NLL, last round", "nats"),
    Column("last_acc", "accuracy, last", "points"),
)

BATCHES = (
    Column("method", "method"),
    Column("by", "by"),
    Column("draws", "S", format="d"),
    Column("joint", "joint information", "nats", ".2f"),
    Column("most", "at most", "nats", ".2f"),
    Column("used_up", "nine tenths by choice"),
    Column("residents", "residents covered", format=".1f"),
)


def parts(results: Results) -> list[Part]:
    """Return the figure and the tables."""
    entries = list(results.entries.values())
    caption = (
        "NLL and accuracy on test rows against the number of labelled rows: mean over seeds, with the band "
        "from the lowest to the highest."
    )
    return [
        Picture(lambda: curve_figure(entries), "active-curves", caption),
        Table(
            DIFFERENCES,
            difference_rows(entries),
            "Acquisition minus random rows, of the same method, seed and start, with Student's 95 % "
            "interval over seeds. First the mean of all rounds after the start",
        ),
        Folded(
            "The first batch, later batches and all scores",
            [
                Table(
                    BATCHES,
                    batch_rows(entries),
                    "The first batch, chosen by one run among the same candidates: information of its "
                    "answers about the latents, the choice by which nine tenths of it are gained (for each "
                    "seed), and residents",
                ),
                *later_batches(results),
                Table(SCORES, score_rows(entries)),
            ],
        ),
    ]


def score_rows(entries: Entries) -> list[dict[str, Any]]:
    """Return a row a method, number of rows and acquisition; means over seeds with their spread."""
    flat = [
        {
            "method": display(e["method"]),
            "labelled": each["labelled"],
            "by": e["by"] if number else "at random (start)",
            **{metric: each["scores"][metric] for metric in METRICS},
        }
        for e in entries
        for number, each in enumerate(e["rounds"])
        if number or e["by"] == RANDOM  # the start is one run
    ]
    rows = spread_rows(flat, ("method", "labelled", "by"), METRICS)
    return sorted(rows, key=lambda row: (row["method"], row["labelled"]))


def difference_rows(entries: Entries) -> list[dict[str, Any]]:
    """Return a row a method and acquisition: what it has more than random, over seeds."""
    return [
        {"method": display(method), "by": by}
        | {metric: _cell(differences(entries, method, by, metric), metric) for metric in METRICS}
        | {f"last_{m}": _cell(differences(entries, method, by, m, last=True), m) for m in METRICS}
        for method in distinct(entries, "method")
        for by in distinct(entries, "by")
        if by != RANDOM
    ]


def differences(entries: Entries, method: str, by: str, metric: str, *, last: bool = False) -> list[float]:
    """Return acquisition minus random, a number a seed that both have: mean of the rounds, or the last."""
    known = {e["seed"]: e for e in having(entries, method=method, by=RANDOM)}
    return [
        mean(
            one["scores"][metric] - other["scores"][metric]
            for one, other in list(zip(e["rounds"], known[e["seed"]]["rounds"], strict=True))[
                -1 if last else 1 :
            ]
        )
        for e in having(entries, method=method, by=by)
        if e["seed"] in known
    ]


def _cell(values: Sequence[float], metric: str) -> str | None:
    digits = METRICS[metric][2]
    if len(values) < 2:
        return f"{values[0]:+.{digits}f}" if values else None
    return interval_cell(student(values), digits)


def later_batches(results: Results) -> list[Table]:
    """Return a table for each batch but the first."""
    entries = list(results.entries.values())
    tables = []
    for number in range(1, results.about["rounds"] - 1):
        labelled = entries[0]["rounds"][number]["labelled"]
        caption = f"batch {number + 1}, after {labelled} rows"
        tables.append(Table(BATCHES, batch_rows(entries, number), caption))
    return tables


def batch_rows(entries: Entries, number: int = 0) -> list[dict[str, Any]]:
    """Return a row a method and acquisition on the batch that a round chooses."""
    rows = []
    for method in distinct(entries, "method"):
        for by in distinct(entries, "by"):
            batches = [e["rounds"][number]["batch"] for e in having(entries, method=method, by=by)]
            if not batches:
                continue
            numbers: dict[str, Value] = {
                key: spread([batch[key] for batch in batches]) for key in ("joint", "residents")
            }
            used = ", ".join(str(batch["used_up"] or "not") for batch in batches)
            most = batches[0]["most"]
            names = {"method": display(method), "by": by, "draws": batches[0]["draws"]}
            rows.append({**names, "most": most, "used_up": used, **numbers})
    return rows


def curve_figure(entries: Entries) -> Figure:
    """Draw NLL and accuracy against labelled rows: a column a method, a line an acquisition."""
    methods = distinct(entries, "method")
    figure = new_figure(PAGE, 4.8)
    panels = figure.subplots(2, len(methods), squeeze=False, sharex=True, sharey="row")
    for above, below, method in zip(*panels, methods, strict=True):
        for index, by in enumerate(distinct(entries, "by")):
            runs = [e["rounds"] for e in having(entries, method=method, by=by)]
            if not runs:
                continue
            labelled = [each["labelled"] for each in runs[0]]
            for axes, metric in ((above, "nll"), (below, "acc")):
                seeds = [[each["scores"][metric] for each in rounds] for rounds in runs]
                columns = list(zip(*seeds, strict=True))
                axes.plot(labelled, [mean(c) for c in columns], label=by, **marked(index))
                low, high = [min(c) for c in columns], [max(c) for c in columns]
                color = line_style(index)["color"]
                axes.fill_between(labelled, low, high, color=color, alpha=0.12, linewidth=0)
        first = method == methods[0]
        dress(above, "", "NLL (nats)" if first else "", display(method))
        dress(below, "Labelled rows", "Accuracy (%)" if first else "")
    legend_below(figure, 4)
    return figure


STUDY = entry_study("Does BaRA choose better rows to label?", SETUP, main, parts)

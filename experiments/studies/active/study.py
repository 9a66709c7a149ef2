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
from typing import Any, get_args

import torch

from bara_pyro.cli.terminal import say
from bara_pyro.core.loading import load_backbone
from bara_pyro.data import Example, Task
from bara_pyro.errors import ConfigError
from bara_pyro.extras.active.acquire import Pool, acquire, ask_pool
from bara_pyro.metrics import evaluate
from bara_pyro.runs.asked import ask
from bara_pyro.runs.config import load_config
from bara_pyro.runs.rows import load_data
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train
from bara_pyro.types import Acquisition
from experiments.engine.arguments import command_line, positive
from experiments.engine.results import results_option, resumed
from experiments.page.spec import entry_study
from experiments.studies.active.section import QUESTION, parts

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
    add("--methods", nargs="+", metavar="NAME", default=list(METHODS), help="default: %(default)s")
    add("--by", nargs="+", metavar="NAME", choices=ACQUISITIONS, default=list(ACQUISITIONS),
        help="acquisitions; default: %(default)s")  # fmt: skip
    add("--seeds", type=positive, default=3, help="repeat with the seeds 0 to N - 1; default: %(default)s")
    add("--start", type=positive, default=40, help="rows to start from; default: %(default)s")
    add("--count", type=positive, default=80, help="rows a batch; default: %(default)s")
    add("--rounds", type=positive, default=4, help="trainings in a row; default: %(default)s")
    add("--candidates", type=positive, default=300,
        help="rows of the pool to choose a batch among; default: %(default)s")  # fmt: skip
    add("--steps", type=positive, default=400, help="training steps a round; default: %(default)s")
    add("--samples", type=positive, default=16,
        help="draws S that rows are chosen by; default: %(default)s")  # fmt: skip
    add("--runs", metavar="DIR", type=Path, default=Path("runs/active"),
        help="folder of the runs; those that it holds are not repeated; default: %(default)s")  # fmt: skip
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


STUDY = entry_study("Active learning", QUESTION, main, parts, order=27)

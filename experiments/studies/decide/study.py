"""Do sets, abstention and alarms keep what they promise, and what does the promise cost, method by method?

    python -m experiments decide

Trains each method, calibrates on the validation rows of its task as `bara conformal`, `bara abstain` and
`bara detect` do, and looks at the test rows: coverage and error rates under the true distribution of answers,
which the microworld knows, sizes of sets, shares of rows answered, alarms on the task's own rows (false ones)
and on rows of shifted tasks. One training serves with and without the noise of foreign rows
(`--distance-aware`), which changes predictions alone: sets and abstention are without it.
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bara_pyro.cli.terminal import say
from bara_pyro.core.loading import load_backbone
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics import accuracy
from bara_pyro.runs.asked import ScoredRows, ask
from bara_pyro.runs.config import load_config
from bara_pyro.runs.decide import decide_abstention, decide_detection, decide_sets
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train
from bara_pyro.types import Measure, SetScore
from experiments.engine.arguments import command_line, positive
from experiments.engine.record import on_task
from experiments.engine.results import results_option, resumed
from experiments.engine.search import chosen
from experiments.page.spec import entry_study
from experiments.studies.decide.section import QUESTION, parts

TASKS, SHIFTED = ("micro-arcc", "micro-obqa"), ("micro-near", "micro-far")
METHODS = ("lora", "ensemble", "bara-gate")
SCORES: tuple[SetScore, ...] = ("lac", "aps")
ALPHAS = (0.05, 0.1, 0.15, 0.2, 0.3)
RISKS, DELTA = (0.1, 0.2, 0.3), 0.05
FALSE_ALARMS = 0.05
MEASURES: tuple[Measure, ...] = ("total", "epistemic", "distance")
OWN = "own"

Rows = Mapping[str, ScoredRows]


def asked_rows(system: System, rows: int, samples: int) -> tuple[ScoredRows, dict[str, ScoredRows]]:
    """Return a system's validation rows; its test rows and the first `rows` of the shifted tasks by name."""
    shifted = {name: on_task(system, name).task.test[:rows] for name in SHIFTED}
    others = {OWN: system.task.test, **shifted}
    known = ask(system, system.task.validation, "validation", samples=samples)
    return known, {name: ask(system, own, name, samples=samples) for name, own in others.items()}


def sets_of(system: System, known: ScoredRows, others: Rows) -> dict[str, Any]:
    """Return coverage (percent) and mean size of sets, by score, alpha and task."""
    return {
        score: {
            str(alpha): {
                name: _numbers(decide_sets(known, asked, system.task, alpha=alpha, score=score).summary)
                for name, asked in others.items()
            }
            for alpha in ALPHAS
        }
        for score in SCORES
    }


def _numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    return {key: summary[key] for key in ("mean_size", "coverage", "expected_coverage")}


def abstention_of(system: System, known: ScoredRows, asked: ScoredRows) -> dict[str, Any]:
    """Return by risk the share of test rows that is answered and their error rate (percent), or a refusal."""
    found: dict[str, Any] = {}
    for risk in RISKS:
        try:
            decided = decide_abstention(known, asked, system.task, risk=risk, delta=DELTA)
        except DataError as error:
            found[str(risk)] = {"refused": str(error)}
            continue
        summary = decided.summary
        found[str(risk)] = {
            "answered": 100 * summary["answered"] / summary["rows"],
            "error_rate": summary["error_rate"],
            "expected_error_rate": summary["expected_error_rate"],
            "bound": 100 * decided.rule.bound,
        }
    return found


def alarms_of(
    system: System, known: ScoredRows, others: Rows, measures: tuple[Measure, ...]
) -> dict[str, Any]:
    """Return by measure the share of rows of each task that is called foreign (percent)."""
    found: dict[str, Any] = {}
    for by in measures:
        try:
            decided = {
                name: decide_detection(system, known, asked, alpha=FALSE_ALARMS, by=by).summary
                for name, asked in others.items()
            }
        except ConfigError:  # draws that do not differ tell nothing
            continue
        found[by] = {name: 100 * s["foreign"] / s["rows"] for name, s in decided.items()}
    return found


def measure(system: System, rows: int, samples: int) -> dict[str, Any]:
    """Return all that is known of one fitted system; its noise of foreign rows is switched off in between."""
    known, others = asked_rows(system, rows, samples)
    aware = alarms_of(system, known, others, MEASURES)
    distance = system.model.distance
    if distance is None:
        raise ConfigError("This system is not distance-aware: make it with adapter.distance_aware=true.")
    distance.scale.zero_()
    known, others = asked_rows(system, rows, samples)
    own = others[OWN]
    plain: tuple[Measure, ...] = ("total", "epistemic")
    return {
        "calibration_rows": len(known.examples),
        "test_rows": len(own.examples),
        "acc": accuracy(own.log_probs, own.labels),
        "sets": sets_of(system, known, others),
        "abstention": abstention_of(system, known, own),
        "alarms": {"plain": alarms_of(system, known, others, plain), "aware": aware},
    }


def one(method: str, task: str, seed: int, args: Namespace, backbone: Any) -> dict[str, Any]:
    """Train a method on a task, or go on with it, and measure it."""
    settings = {
        "method": method,
        **chosen(method),
        "task.name": task,
        "seed": seed,
        "train.steps": args.steps,
        "adapter.distance_aware": True,
    }
    system = build_system(load_config(overrides=settings), backbone)
    train(system, args.runs / f"{method}-{task}-{seed}", resume=True)
    return measure(system, args.rows, args.samples)


def main() -> None:
    """Run what is missing and write the results."""
    parser = command_line(__doc__)
    add = parser.add_argument
    add("--methods", nargs="+", metavar="NAME", default=list(METHODS), help="default: %(default)s")
    add("--tasks", nargs="+", metavar="NAME", default=list(TASKS), help="default: %(default)s")
    add("--seeds", type=positive, default=1, help="repeat with the seeds 0 to N - 1; default: %(default)s")
    add("--steps", type=positive, default=1000, help="training steps; default: %(default)s")
    add("--samples", type=positive, default=10, help="posterior draws S; default: %(default)s")
    add("--rows", type=positive, default=500, help="rows of each shifted task; default: %(default)s")
    add("--runs", metavar="DIR", type=Path, default=Path("runs/decide"),
        help="folder of the runs; those that it holds are not repeated; default: %(default)s")  # fmt: skip
    results_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    backbone = load_backbone("microworld")
    about = {
        "steps": args.steps,
        "samples": args.samples,
        "rows": args.rows,
        "delta": DELTA,
        "alpha": FALSE_ALARMS,
    }
    results = resumed("decide", args.out, about)
    places = [(m, t, s) for s in range(args.seeds) for t in args.tasks for m in args.methods]
    for number, (method, task, seed) in enumerate(places, start=1):
        key = f"{method} {task} {seed}"
        if key not in results.entries:
            found = one(method, task, seed, args, backbone)
            results.add(key, {"method": method, "task": task, "seed": seed, **found})
        own = results.entries[key]["sets"]["lac"]["0.1"][OWN]
        said = f"coverage {own['expected_coverage']:.1f} %, {own['mean_size']:.2f} answers a set"
        say(f"[{number}/{len(places)}] {key}: {said}")
    say(f"Written to {results.path}: python -m experiments report --out {args.out}")


STUDY = entry_study("Decisions with a promise", QUESTION, main, parts, order=24)

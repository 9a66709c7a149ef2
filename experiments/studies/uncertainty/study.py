"""Do the uncertainties mean what they should? More training rows, known ambiguity, shifts.

    python -m experiments uncertainty

Aleatoric uncertainty should follow the true entropy of the answers, which the microworld knows. Epistemic
uncertainty should fall with more training rows, and rise under a shift. Trains each method on the first rows
of the large four-way task, and splits its uncertainty on test rows of the task and of the shifted ones. Of
BaRA the epistemic part is split into that of the global and of the local gates, by nested draws.
"""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bara_pyro.cli.terminal import say
from bara_pyro.core.loading import load_backbone
from bara_pyro.data import first_rows
from bara_pyro.diagnostics.gates.rank import relation
from bara_pyro.metrics import accuracy, decompose, decompose_nested, kl_from_truth, posterior_predictive
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw, true_probabilities
from bara_pyro.runs.rows import load_data
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train
from experiments.engine.arguments import command_line, positive
from experiments.engine.methods import tagged
from experiments.engine.record import on_task
from experiments.engine.results import results_option, resumed
from experiments.engine.search import chosen
from experiments.page.spec import entry_study
from experiments.studies.uncertainty.section import QUESTION, parts

TASK, SHIFTED = "micro-obqa", ("micro-near", "micro-far")
SIZES = (80, 320, 1280, 4957)
NESTED = 8  # draws of the global gates, and for each as many of the local ones


def measure(system: System, rows: int) -> dict[str, float]:
    """Return the mean uncertainty of test rows by kind (nats), and how it compares with the truth.

    Returns:
        `total`, `aleatoric`, `epistemic`; of BaRA `global` and `local`, too; `acc` (percent); `kl`: from the
        true answer distribution (nats); `bias`: aleatoric uncertainty less true entropy (nats); `rho`, `low`,
        `high`: Spearman's correlation of both over rows with its 95 % interval.
    """
    split = first_rows(system.split("test"), rows)
    nested = system.model.gates is not None
    draws = draw(system, split, NESTED * NESTED, repeats=NESTED if nested else 1)
    parts, averaged = decompose(draws), posterior_predictive(draws)
    truth = true_probabilities(system, split, "test")
    entropy = torch.special.entr(truth).sum(-1)
    follows = relation(parts.aleatoric[:, None], entropy, "the true entropy")
    found = {
        "total": float(parts.total.mean()),
        "aleatoric": float(parts.aleatoric.mean()),
        "epistemic": float(parts.epistemic.mean()),
        "acc": accuracy(averaged, torch.tensor(split.labels)),
        "kl": kl_from_truth(averaged, truth),
        "bias": float((parts.aleatoric - entropy).mean()),
        "rho": follows.rho,
        "low": follows.low,
        "high": follows.high,
    }
    if nested:
        levels = decompose_nested(draws, NESTED)
        found |= {"global": float(levels.global_.mean()), "local": float(levels.local.mean())}
    return found


def one(method: str, size: int, seed: int, args: Namespace, backbone: Any) -> dict[str, Any]:
    """Train a method on the first `size` rows, or go on with it, and measure it on every task."""
    settings = {
        "method": method,
        **chosen(method),
        "task.name": TASK,
        "seed": seed,
        "train.steps": args.steps,
    }
    config = load_config(overrides=settings)
    task = load_data(config)
    system = build_system(config, backbone, replace(task, train=task.train[:size]))
    train(system, args.runs / f"{method}-{size}-{seed}", resume=True)
    tasks = {TASK: system} | {name: on_task(system, name) for name in SHIFTED}
    return {name: measure(one_task, args.rows) for name, one_task in tasks.items()}


def main() -> None:
    """Run what is missing and write the results."""
    parser = command_line(__doc__)
    add = parser.add_argument
    add("--methods", nargs="+", metavar="NAME", default=tagged("short"), help="default: %(default)s")
    add("--sizes", nargs="+", metavar="N", type=positive, default=list(SIZES),
        help="numbers of training rows; default: %(default)s")  # fmt: skip
    add("--seeds", type=positive, default=1, help="repeat with the seeds 0 to N - 1; default: %(default)s")
    add("--steps", type=positive, default=1000, help="training steps; default: %(default)s")
    add("--rows", type=positive, default=400, help="test rows of each task; default: %(default)s")
    add("--runs", metavar="DIR", type=Path, default=Path("runs/uncertainty"),
        help="folder of the runs; those that it holds are not repeated; default: %(default)s")  # fmt: skip
    results_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    backbone = load_backbone("microworld")
    about = {"steps": args.steps, "rows": args.rows, "nested": NESTED, "task": TASK}
    results = resumed("uncertainty", args.out, about)
    places = [(m, n, s) for s in range(args.seeds) for n in args.sizes for m in args.methods]
    for number, (method, size, seed) in enumerate(places, start=1):
        key = f"{method} {size} {seed}"
        if key not in results.entries:
            found = one(method, size, seed, args, backbone)
            results.add(key, {"method": method, "size": size, "seed": seed, "tasks": found})
        own = results.entries[key]["tasks"][TASK]
        say(f"[{number}/{len(places)}] {key}: epistemic {own['epistemic']:.4f}, ρ {own['rho']:+.2f}")
    say(f"Written to {results.path}: python -m experiments report --out {args.out}")


STUDY = entry_study("What the uncertainties mean", QUESTION, main, parts, order=22)

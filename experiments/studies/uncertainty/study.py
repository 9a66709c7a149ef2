"""Do the uncertainties mean what they should? More training rows, known ambiguity, shifts.

    python -m experiments uncertainty

Aleatoric uncertainty should follow the true entropy of the answers, which the microworld knows. Epistemic
uncertainty should fall with more training rows, and rise under a shift. Trains each method on the first rows
of the large four-way task, and splits its uncertainty on test rows of the task and of the shifted ones. Of
BaRA the epistemic part is split into that of the global and of the local gates, by nested draws.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from matplotlib.figure import Figure

from bara_pyro.cli.terminal import say
from bara_pyro.core.loading import load_backbone
from bara_pyro.data import first_rows
from bara_pyro.diagnostics.gates.rank import relation
from bara_pyro.metrics import accuracy, decompose, decompose_nested, kl_from_truth, posterior_predictive
from bara_pyro.report import Column, Table
from bara_pyro.report.style import dress, legend_of, new_figure
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw, true_probabilities
from bara_pyro.runs.rows import load_data
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train
from experiments.engine.arguments import command_line, positive
from experiments.engine.methods import tagged
from experiments.engine.record import on_task
from experiments.engine.results import Results, distinct, having, results_option, resumed
from experiments.engine.search import chosen
from experiments.page.figures import PAGE, marked
from experiments.page.parts import Part, Picture
from experiments.page.spec import entry_study
from experiments.page.values import display, spread_rows

QUESTION = """\
Each method trained on the first rows of {task} ({steps:,} steps, settings of the search; {seeds}) and asked
{rows} test rows of that task and of the shifted ones. Aleatoric uncertainty should follow the true entropy of
the answers (ρ: Spearman's correlation over rows), epistemic uncertainty should fall with more training rows
and rise under a shift. Nats; of BaRA the epistemic part is that of Φ and that of θ, by {nested} × {nested}
nested draws.
"""

COLUMNS = (
    Column("method", "method"),
    Column("size", "training rows", format=",d"),
    Column("task", "test rows of"),
    Column("acc", "ACC", "%", ".1f"),
    Column("kl", "KL from truth", format=".3f"),
    Column("aleatoric", "aleatoric", format=".3f"),
    Column("bias", "less true entropy", format="+.3f"),
    Column("rho", "ρ", format="+.2f"),
    Column("epistemic", "epistemic", format=".4f"),
    Column("global", "of Φ", format=".4f"),
    Column("local", "of θ", format=".4f"),
)

Entries = Sequence[dict[str, Any]]


def parts(results: Results) -> list[Part]:
    """Return the table and the figure."""
    entries = list(results.entries.values())
    caption = "Epistemic uncertainty (mutual information of answer and latents) against training rows."
    picture = Picture(lambda: size_figure(entries), "uncertainty-rows", caption)
    return [Table(COLUMNS, table_rows(entries)), picture]


def table_rows(entries: Entries) -> list[dict[str, Any]]:
    """Return a row a method, number of training rows and task; means over seeds with their spread."""
    flat = [
        {"method": display(e["method"]), "size": e["size"], "task": task, **numbers}
        for method in distinct(entries, "method")
        for e in sorted(having(entries, method=method), key=itemgetter("size"))
        for task, numbers in e["tasks"].items()
    ]
    return spread_rows(flat, ("method", "size", "task"), [column.key for column in COLUMNS[3:]])


def size_figure(entries: Entries) -> Figure:
    """Draw epistemic uncertainty against the number of training rows: a panel a task, a line a method."""
    tasks, asked = list(entries[0]["tasks"]), sorted(distinct(entries, "size"))
    figure = new_figure(PAGE, 3.0)
    panels = figure.subplots(1, len(tasks), squeeze=False, sharey=True)[0]
    for axes, task in zip(panels, tasks, strict=True):
        for index, method in enumerate(distinct(entries, "method")):
            own = having(entries, method=method)
            sizes = sorted(distinct(own, "size"))
            values = [mean(e["tasks"][task]["epistemic"] for e in having(own, size=n)) for n in sizes]
            axes.plot(sizes, values, label=display(method), **marked(index))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(asked, [f"{n:,}" for n in asked])
        axes.minorticks_off()
        dress(axes, "Training rows", "Epistemic uncertainty (nats)" if axes is panels[0] else "", task)
    legend_of(panels[0], loc="best")
    return figure


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

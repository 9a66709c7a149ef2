"""Do the uncertainties mean what they should? More training rows, known ambiguity, shifts.

    python -m experiments uncertainty

Aleatoric uncertainty should follow the true entropy of the answers, which the microworld knows. Epistemic
uncertainty should fall with more training rows, and rise under a shift. Trains each method on the first rows
of the large four-way task, and splits its uncertainty on test rows of the task and of the shifted ones. Of
BaRA the epistemic part is split into that of the global and of the local gates, by nested draws.
"""

from argparse import Namespace
from collections.abc import Sequence
from operator import itemgetter
from statistics import mean
from typing import Any

import torch
from matplotlib.figure import Figure

from bara_pyro.data import first_rows
from bara_pyro.diagnostics.gates.rank import relation
from bara_pyro.metrics import accuracy, decompose, decompose_nested, kl_from_truth, posterior_predictive
from bara_pyro.report import Column, Table
from bara_pyro.report.style import dress, legend_of, new_figure
from bara_pyro.runs.evaluate import draw, true_probabilities
from bara_pyro.runs.system import System
from experiments.engine.arguments import option
from experiments.engine.methods import tagged
from experiments.engine.record import on_task
from experiments.engine.results import Results, distinct, having
from experiments.engine.search import chosen_job
from experiments.engine.sweep import Job
from experiments.page.figures import PAGE, marked
from experiments.page.parts import Part, Picture
from experiments.page.spec import look_study
from experiments.page.tables import spread_table
from experiments.page.values import display

TASK, SHIFTED = "micro-obqa", ("micro-near", "micro-far")
SIZES = (80, 320, 1280, 4957)
NESTED = 8  # draws of the global gates, and for each as many of the local ones
SETUP = """\
Each method trained on the first rows of {task} ({steps:,} steps, settings of the search; {seeds}) and
predicted {rows} test rows of that task and of the shifted ones. Aleatoric uncertainty should follow the
true entropy of the answers (ρ: Spearman's correlation over rows). Epistemic uncertainty should fall with
more training rows and rise under a shift. All values are in nats. BaRA's epistemic part is split into Φ's
and θ's by {nested} × {nested} nested draws.
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


def jobs(args: Namespace) -> dict[tuple[Any, ...], Job]:
    """Return each method on each number of training rows, the first ones."""
    return {
        (method, size, seed): chosen_job(args, method, TASK, seed, {"task.train_rows": size})
        for seed in range(args.seeds)
        for size in args.sizes
        for method in args.methods
    }


def look(system: System, args: Namespace) -> dict[str, Any]:
    """Return the uncertainty of test rows of every task."""
    tasks = {TASK: system} | {name: on_task(system, name) for name in SHIFTED}
    return {"tasks": {name: measure(own, args.rows) for name, own in tasks.items()}}


def measure(system: System, rows: int) -> dict[str, float]:
    """Return the mean uncertainty of test rows by kind (nats), and how it compares with the truth.

    Returns:
        `total`, `aleatoric`, `epistemic`; of BaRA also `global` and `local`; `acc` (percent); `kl`: from the
        true answer distribution (nats); `bias`: aleatoric uncertainty less true entropy (nats); `rho`, `low`,
        `high`: Spearman's correlation of both over rows with its 95 % interval.
    """
    split = first_rows(system.split("test"), rows)
    nested = system.model.gates is not None
    draws = draw(system, split, NESTED * NESTED, repeats=NESTED if nested else 1)
    kinds, averaged = decompose(draws), posterior_predictive(draws)
    truth = true_probabilities(system, split, "test")
    entropy = torch.special.entr(truth).sum(-1)
    follows = relation(kinds.aleatoric[:, None], entropy, "the true entropy")
    found = {name: float(getattr(kinds, name).mean()) for name in ("total", "aleatoric", "epistemic")}
    found |= {
        "acc": accuracy(averaged, torch.tensor(split.labels)),
        "kl": kl_from_truth(averaged, truth),
        "bias": float((kinds.aleatoric - entropy).mean()),
        **{name: getattr(follows, name) for name in ("rho", "low", "high")},
    }
    if nested:
        levels = decompose_nested(draws, NESTED)
        found |= {"global": float(levels.global_.mean()), "local": float(levels.local.mean())}
    return found


def parts(results: Results) -> list[Part]:
    """Return the table and the figure."""
    entries = list(results.entries.values())
    caption = "Epistemic uncertainty (mutual information of answer and latents) against training rows."
    return [size_table(entries), Picture(lambda: size_figure(entries), "uncertainty-rows", caption)]


def size_table(entries: Entries) -> Table:
    """Return a row a method, number of training rows and task; means over seeds with their spread."""
    flat = [
        {"method": display(e["method"]), "size": e["size"], "task": task, **numbers}
        for method in distinct(entries, "method")
        for e in sorted(having(entries, method=method), key=itemgetter("size"))
        for task, numbers in e["tasks"].items()
    ]
    return spread_table(flat, COLUMNS, ("method", "size", "task"))


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


STUDY = look_study(
    "uncertainty",
    __doc__,
    "Do the uncertainties mean what they should?",
    SETUP,
    look,
    parts,
    jobs=jobs,
    place=("method", "size", "seed"),
    runs="runs/uncertainty",
    methods=tagged("short"),
    tasks=None,
    seeds=1,
    options={
        "--sizes": option(SIZES, "numbers of training rows"),
        "--rows": option(400, "test rows of each task"),
    },
    kept=("rows",),
    constants={"nested": NESTED, "task": TASK},
)

"""Regret: how much worse than the best a method is when nobody tunes it, over a grid of settings.

    python -m experiments regret --seeds 1
    python -m experiments regret --seeds 1 --model runs/worlds/101 --set task.world=101 --name regret_101

Rates x steps x ranks x training rows, nine of the 81 combinations: an orthogonal array (Taguchi's L9), in
which every two levels of two factors meet exactly once. The regret of a run is its test NLL above the lowest
that any method reached on the task with these rows; a run that failed has an infinite one. Few rows have a
rehearsal (docs/calibrated.md) where the name of the arm or the default of the method says so.
"""

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import median

from matplotlib.figure import Figure

from bara_pyro.report import Column, Table
from bara_pyro.report.style import dress, legend_of, line_style, new_figure
from experiments.engine.record import number
from experiments.engine.rehearsal import rehearsed_or_not
from experiments.engine.run import Arms
from experiments.engine.study import Study
from experiments.page.parts import Part, Picture
from experiments.page.spec import arm_study
from experiments.page.values import display, draws_of

RATES = (3e-4, 1e-3, 3e-3)
STEPS = (300, 1000, 3000)
RANKS = (2, 8, 32)
ROWS = (80, 320, None)  # all that there are
WORST = 10.0  # nats: where a figure ends


def grid() -> dict[str, dict[str, float | None]]:
    """Return the nine settings by name."""
    found = {}
    for (i, rows), (j, rate) in product(enumerate(ROWS), enumerate(RATES)):
        steps, r = STEPS[(i + j) % 3], RANKS[(i + 2 * j) % 3]
        found[f"{'all' if rows is None else rows} rows, lr {rate:g}, {steps} steps, r {r}"] = {
            "train.lr": rate,
            "train.steps": steps,
            "adapter.r": r,
            "adapter.lora_alpha": 2.0 * r,  # the scaling alpha / r stays
            "task.train_rows": rows,
        }
    return found


def arms(args: Namespace) -> Arms:
    """Return each method with each of the settings."""
    return {
        f"{label}, {name}": {**settings, **arm}
        for name, settings in grid().items()
        for label, arm in rehearsed_or_not(args.methods, few=settings["task.train_rows"] is not None).items()
    }


def regrets(study: Study, with_rows: str | None = None) -> dict[str, list[float]]:
    """Return method -> its regrets in nats, rising, under the largest S; of runs with such rows if named."""
    nll: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for arm, tasks in study.arms.items():
        method, rows, *_ = arm.split(", ")
        if with_rows not in (None, rows):
            continue
        draws = draws_of(tasks)
        for task, seeds in tasks.items():
            for record in seeds.values():
                found = math.inf if "failed" in record else number(record["metrics"][draws[-1]]["nll"])
                nll.setdefault((task, rows), []).append((method, found))
    above: dict[str, list[float]] = {}
    for runs in nll.values():
        best = min(value for _, value in runs)
        for method, value in runs:
            above.setdefault(method, []).append(value - best if math.isfinite(value) else math.inf)
    return {method: sorted(values) for method, values in above.items()}


def parts(study: Study) -> list[Part]:
    """Return the picture and a table: median, worst case, how many are near the best."""
    above = regrets(study)
    numbers = list(dict.fromkeys(arm.split(", ")[1] for arm in study.arms))  # "80 rows"
    by_rows = {number: regrets(study, number) for number in numbers}
    rows = [
        {
            "name": display(method),
            "runs": len(values),
            "median": median(values),
            "ninth": values[math.ceil(0.9 * len(values)) - 1],
            "worst": values[-1],
            "near": 100 * sum(value <= 0.05 for value in values) / len(values),
            **{number: median(found[method]) for number, found in by_rows.items()},
        }
        for method, values in above.items()
    ]
    columns = (
        Column("name", "method"),
        Column("runs", "runs", format="d"),
        Column("median", "median", "nats", ".3f", "min", second=True),
        Column("ninth", "9 of 10 below", "nats", ".3f", "min", second=True),
        Column("worst", "worst", "nats", ".3f", "min", second=True),
        Column("near", "within 0.05 nats", "%", ".0f", "max", second=True),
        *(Column(number, f"median, {number}", "nats", ".3f", "min", second=True) for number in by_rows),
    )
    picture = Picture(
        lambda: regret_figure(above),
        f"{study.name}-regret",
        "Share of settings whose NLL is within so much of the best that any method reached: further left and "
        "higher is safer without tuning.",
    )
    return [picture, Table(columns, rows, "Regret, in nats above the best of all methods")]


def regret_figure(above: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the share of settings within a regret, a line a method."""
    figure = new_figure(5.2, 3.4)
    axes = figure.subplots()
    for index, (method, values) in enumerate(above.items()):
        shares = [100 * (i + 1) / len(values) for i in range(len(values))]
        places = [min(max(value, 1e-3), WORST) for value in values]
        axes.step([1e-3, *places], [0.0, *shares], where="post", label=display(method), **line_style(index))
    axes.set_xscale("log")
    dress(axes, "NLL above the best (nats)", "settings (%)")
    legend_of(axes, loc="lower right")
    return figure


STUDY = arm_study(
    "regret",
    __doc__,
    "Regret without tuning",
    "Rates from 3e-4 to 3e-3, 300 to 3,000 steps, ranks 2 to 32, 80 to all training rows, nine settings in "
    "which every two levels meet once: how far is a run whose settings nobody chose from the best run of any "
    "method with the same rows? Exploratory: test rows say what is best, for all alike.",
    parts,
    arms,
    methods=("bara-gate", "bara", "lora", "temperature", "blob"),
    tasks=("micro-wgs", "micro-arcc", "micro-obqa"),
    options={"--name": {"default": "regret", "help": "of the results; default: %(default)s"}},
    order=18,
)

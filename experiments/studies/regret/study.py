"""Regret: how much worse than the best a method is when nobody tunes it, over a grid of settings.

    python -m experiments regret --seeds 1
    python -m experiments regret --seeds 1 --model runs/worlds/101 --set task.world=101 --name regret_101

Rates x steps x ranks x training rows, nine of the 81 combinations: an orthogonal array (Taguchi's L9), in
which every two levels of two factors meet exactly once. The regret of a run is its test NLL above the lowest
that any method reached on the task with these rows; a run that failed has an infinite one. Runs on few rows
have split-half calibration (docs/calibrated.md) if the name of the arm or the method's default has it.
"""

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bara_pyro.report import Column, Table
from bara_pyro.report.style import INK, PALETTE, legend_of, new_figure
from experiments.engine.methods import rehearsed_or_not
from experiments.engine.record import number
from experiments.engine.results import Study
from experiments.engine.run import Arms
from experiments.page.figures import PAGE, name_rows
from experiments.page.parts import Folded, Part, Picture
from experiments.page.spec import arm_study
from experiments.page.values import display, largest_draws, score

RATES = (3e-4, 1e-3, 3e-3)
STEPS = (300, 1000, 3000)
RANKS = (2, 8, 32)
ROWS = (80, 320, None)  # all that there are
REFERENCE = "bara-gate"
PLACE = ["rows", "setting", "task", "seed"]
"""What tells a run from the others of its method; a setting is its rate, length and rank."""
LEAST, WORST = 1e-3, 10.0  # nats: where the figure ends


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


def losses(study: Study) -> pd.DataFrame:
    """Return the test NLL (nats, largest S) of every run and its regret; both are infinite if it failed."""
    found = []
    for arm, tasks in study.arms.items():
        method, rows, setting = arm.split(", ", 2)
        read = score(largest_draws(tasks), "nll")
        found += [
            (method, rows, setting, task, seed, math.inf if "failed" in record else number(read(record)))
            for task, seeds in tasks.items()
            for seed, record in seeds.items()
        ]
    frame = pd.DataFrame(found, columns=["method", *PLACE, "nll"])
    above = frame["nll"] - frame.groupby(["task", "rows"])["nll"].transform("min")
    return frame.assign(regret=above.fillna(math.inf))  # where all runs failed, none is the best


def ninth(values: pd.Series) -> float:
    """Return what nine of ten regrets are at most."""
    return float(values.sort_values().iloc[math.ceil(0.9 * len(values)) - 1])


def near(values: pd.Series) -> float:
    """Return how many regrets are small, percent."""
    return 100 * float((values <= 0.05).mean())


def parts(study: Study) -> list[Part]:
    """Return the picture and a table: median, worst case, how many are near the best.

    Medians of two methods say little about which is ahead where both have the same settings: "ahead" and
    "less" are how often, and by how much, a method has a lower NLL than the reference with the same settings.
    """
    frame = losses(study)
    by_method = frame.groupby("method", sort=False)["regret"]
    table = by_method.agg(runs="count", median="median", ninth=ninth, worst="max", near=near)
    by_rows = frame.pivot_table("regret", "method", "rows", "median", sort=False)
    wide = frame.pivot(index=PLACE, columns="method", values="nll")
    if REFERENCE in wide:
        minus = wide.drop(columns=REFERENCE).sub(wide[REFERENCE], axis=0)
        table = table.join(pd.DataFrame({"ahead": (minus < 0).sum().astype("Int64"), "less": minus.mean()}))
    ordered = table.join(by_rows).sort_values("median", kind="stable").to_dict("index")
    rows = [
        {"name": display(method)} | {key: value for key, value in row.items() if not pd.isna(value)}
        for method, row in ordered.items()
    ]
    columns = (
        Column("name", "method"),
        Column("runs", "runs", format="d"),
        Column("median", "median", "nats", ".3f", "min", second=True),
        Column("ninth", "9 of 10 below", "nats", ".3f", "min", second=True),
        Column("worst", "worst", "nats", ".3f", "min", second=True),
        Column("near", "within 0.05 nats", "%", ".0f", "max", second=True),
        Column("ahead", f"lower NLL than {display(REFERENCE)}", "runs", format="d"),
        Column("less", f"minus {display(REFERENCE)}, mean", "nats", format="+.3f"),
    )
    of_rows = [columns[0], *(Column(number, number, "", ".3f", "min", second=True) for number in by_rows)]
    picture = Picture(
        lambda: regret_figure(rows),
        f"{study.name}-regret",
        "Distance of runs with untuned settings from the best run: median, 90th percentile and worst; "
        "further left is safer. BaRA is blue.",
    )
    return [
        picture,
        Table(columns, rows, "Regret, in nats above the best of all methods"),
        Folded("By number of training rows", [Table(of_rows, rows, "Median regret (nats)")]),
    ]


MARKS = {"median": ("o", "median"), "ninth": ("|", "nine of ten are below"), "worst": ("x", "worst")}
"""Of each number in the figure: its mark and what it is."""


def regret_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw median, ninth decile and worst case of each method, the best median on top."""
    figure = new_figure(PAGE, 0.26 * len(rows) + 1.3)
    axes = figure.subplots()
    for place, row in enumerate(rows):
        colour = PALETTE[0] if row["name"].startswith("BaRA") else INK
        x = {key: min(max(row[key], LEAST), WORST) for key in MARKS}
        axes.plot([x["median"], x["worst"]], [place] * 2, color=colour, linewidth=0.9, label=row["name"])
        for key, (mark, _) in MARKS.items():
            axes.plot(x[key], place, mark, color=colour, markersize=6)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    name_rows(axes, (row["name"] for row in rows), "NLL above the best (nats)")
    handles = [
        Line2D([], [], marker=mark, color=INK, linestyle="none", label=what) for mark, what in MARKS.values()
    ]
    legend_of(figure, handles=handles, loc="outside upper center", ncols=3)
    return figure


STUDY = arm_study(
    "regret",
    __doc__,
    "How much does it cost not to tune?",
    "Rates from 3e-4 to 3e-3, 300 to 3,000 steps, ranks 2 to 32, and 80 to all training rows, in nine "
    "configurations of an orthogonal array. Exploratory: the best run is the best on test rows, for all "
    "alike.",
    parts,
    arms,
    methods=("bara-gate", "bara", "lora", "temperature", "blob"),
    tasks=("micro-wgs", "micro-arcc", "micro-obqa"),
)

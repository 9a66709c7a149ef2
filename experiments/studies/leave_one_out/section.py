"""The section on PSIS-LOO: methods ranked on training rows, and by unseen ones."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from matplotlib.figure import Figure
from scipy.stats import spearmanr

from bara_pyro.report import Column, Table
from bara_pyro.report.style import GREY, PALETTE, dress, legend_of, new_figure
from experiments.engine.results import Results
from experiments.page.parts import Part, Picture
from experiments.page.values import display, spread

QUESTION = """\
Methods with some spread ranked by PSIS-LOO on training rows ({samples} draws; {model}, {steps:,} training
steps, {seeds}), and the test rows' log probability under the same runs. Means over rows, nats; higher is
better. "too hopeful": how far the first is above the second, which is what the weights that are points (A, B
and the amortiser) have learnt by heart and no re-weighting of draws takes back. "high k": rows whose Pareto k
is above the limit, percent. "weight": of stacking.
"""
COLUMNS = (
    Column("method", "method"),
    Column("elpd", "PSIS-LOO", format=".3f", best="max"),
    Column("difference", "behind the best", format=".3f"),
    Column("difference_se", "its error", format=".3f"),
    Column("unseen", "unseen rows", format=".3f", best="max"),
    Column("hope", "too hopeful", format="+.3f"),
    Column("high", "high k", "%", ".1f"),
    Column("weight", "weight", format=".2f"),
)

Entries = Sequence[dict[str, Any]]


def parts(results: Results) -> list[Part]:
    """Return a table a task and the figure."""
    entries = list(results.entries.values())
    tables = [task_table(task, entries) for task in dict.fromkeys(entry["task"] for entry in entries)]
    caption = "PSIS-LOO on training rows against unseen rows, a point a method and seed; dotted: equal."
    return [*tables, Picture(lambda: loo_figure(entries), "leave-one-out", caption)]


def task_table(task: str, entries: Entries) -> Table:
    """Return a row a method of one task; means over seeds with their spread."""
    found = [entry for entry in entries if entry["task"] == task]
    rows = [
        {"method": display(m), **{key: spread(value) for key, value in values.items()}}
        for m, values in by_method(found).items()
    ]
    count = found[0]["rows"][0]["rows"]
    caption = f"{task}, {count} training rows; Spearman's ρ of both columns {agreement(found):+.2f}"
    return Table(COLUMNS, rows, caption)


def by_method(entries: Entries) -> dict[str, dict[str, list[float]]]:
    """Return the columns of one task: method, best first on average -> column -> values, one a seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for entry in entries:
        for row in entry["rows"]:
            own = found.setdefault(row["method"], {column.key: [] for column in COLUMNS[1:]})
            high = 100 * row["unreliable"] / row["rows"]
            for key, value in {**row, "hope": row["elpd"] - row["unseen"], "high": high}.items():
                if key in own:
                    own[key].append(value)
    return dict(sorted(found.items(), key=lambda item: -mean(item[1]["elpd"])))


def agreement(entries: Entries) -> float:
    """Return the rank correlation of PSIS-LOO and unseen rows over the methods, means over seeds."""
    values = by_method(entries).values()
    return float(spearmanr([mean(v["elpd"]) for v in values], [mean(v["unseen"]) for v in values]).statistic)


def loo_figure(entries: Entries) -> Figure:
    """Draw PSIS-LOO against unseen rows: a panel a task, a marker a method."""
    tasks = list(dict.fromkeys(entry["task"] for entry in entries))
    figure = new_figure(3.6 * len(tasks) + 1.6, 3.4)
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        found = by_method([entry for entry in entries if entry["task"] == task])
        for index, method in enumerate(sorted(found)):
            look: dict[str, Any] = {"color": PALETTE[index % len(PALETTE)], "marker": "osD^vP*X"[index % 8]}
            own = found[method]
            axes.plot(own["elpd"], own["unseen"], linestyle="", markersize=6, label=display(method), **look)
        ends = [*axes.get_xlim(), *axes.get_ylim()]
        axes.plot([min(ends), max(ends)], [min(ends), max(ends)], ":", color=GREY, linewidth=1.0)
        dress(axes, "PSIS-LOO, training rows (nats a row)", "Unseen rows (nats a row)", task)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    legend_of(figure, handles=handles, labels=labels, loc="outside right center")
    return figure

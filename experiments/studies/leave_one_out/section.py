"""The section on PSIS-LOO: methods ranked on training rows, and by unseen ones."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from matplotlib.figure import Figure
from scipy.stats import spearmanr

from bara_pyro.report import Column, Table
from bara_pyro.report.style import GREY, PALETTE, dress, legend_of, new_figure
from experiments.engine.results import Results, distinct, having
from experiments.page.figures import PAGE
from experiments.page.parts import Part, Picture
from experiments.page.values import display, spread_rows

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
    tables = [task_table(task, entries) for task in distinct(entries, "task")]
    caption = "PSIS-LOO on training rows against unseen rows, a point a method and seed; dotted: equal."
    return [*tables, Picture(lambda: loo_figure(entries), "leave-one-out", caption)]


def rows_of(task: str, entries: Entries) -> list[dict[str, Any]]:
    """Return the rows of one task, all seeds, the methods that are best on average first."""
    found = [
        {**row, "hope": row["elpd"] - row["unseen"], "high": 100 * row["unreliable"] / row["rows"]}
        for entry in having(entries, task=task)
        for row in entry["rows"]
    ]
    order = {m: -mean(row["elpd"] for row in having(found, method=m)) for m in distinct(found, "method")}
    return sorted(found, key=lambda row: order[row["method"]])


def task_table(task: str, entries: Entries) -> Table:
    """Return a row a method of one task; means over seeds with their spread."""
    found = rows_of(task, entries)
    rows = spread_rows(found, ["method"], [column.key for column in COLUMNS[1:]])
    shown = [{**row, "method": display(row["method"])} for row in rows]
    said = f"{found[0]['rows']} training rows; Spearman's ρ of both columns {agreement(found):+.2f}"
    return Table(COLUMNS, shown, f"{task}, {said}")


def agreement(found: Entries) -> float:
    """Return the rank correlation of PSIS-LOO and unseen rows over the methods, means over seeds."""
    methods = [having(found, method=method) for method in distinct(found, "method")]
    seen, unseen = ([mean(row[key] for row in own) for own in methods] for key in ("elpd", "unseen"))
    return float(spearmanr(seen, unseen).statistic)


def loo_figure(entries: Entries) -> Figure:
    """Draw PSIS-LOO against unseen rows: a panel a task, a marker a method."""
    tasks = distinct(entries, "task")
    figure = new_figure(PAGE, 3.4)
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        found = rows_of(task, entries)
        for index, method in enumerate(sorted(distinct(found, "method"))):
            look: dict[str, Any] = {"color": PALETTE[index % len(PALETTE)], "marker": "osD^vP*X"[index % 8]}
            own = having(found, method=method)
            x, y = ([row[key] for row in own] for key in ("elpd", "unseen"))
            axes.plot(x, y, linestyle="", markersize=6, label=display(method), **look)
        ends = [*axes.get_xlim(), *axes.get_ylim()]
        axes.plot([min(ends), max(ends)], [min(ends), max(ends)], ":", color=GREY, linewidth=1.0)
        dress(axes, "PSIS-LOO (nats)", "Unseen rows (nats)", task)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    legend_of(figure, handles=handles, labels=labels, loc="outside lower center", ncols=3)
    return figure

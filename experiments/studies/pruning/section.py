"""The section on pruning: units left at a tolerance, scores along the curve of kept rank, a figure."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from bara_pyro.report import Column, Table
from bara_pyro.report.style import dress, legend_of, line_style, new_figure
from experiments.engine.results import Results
from experiments.page.parts import Part, Picture
from experiments.page.values import display, spread

QUESTION = """\
Units (a direction of a module's rank) dropped in the order of what they add to their layer's output, measured
on {calibration} training rows; every module keeps one. Scores on {rows} test rows, S = {samples} ({model},
{steps:,} training steps, {seeds}). "left at": percent of the units that are left when no probability of the
posterior mean may change by more than that on the training rows. "time": of S = 0 as a share of the whole's.
"""
SHOWN = {"acc": "ACC (%)", "nll": "NLL (nats)", "difference": "Largest change of a probability"}

Entries = Sequence[dict[str, Any]]


def parts(results: Results) -> list[Part]:
    """Return the tables and the figure."""
    entries = list(results.entries.values())
    caption = "Scores against the share of units kept, means over tasks and seeds; all units at the left."
    picture = Picture(lambda: curve_figure(entries), "pruning", caption)
    return [tolerance_table(entries), curve_table(entries), picture]


def tolerance_table(entries: Entries) -> Table:
    """Return the percentage of units left at each tolerance: a row a method and task."""
    tolerances = list(entries[0]["kept"])
    rows = []
    for method in _methods(entries):
        for task in dict.fromkeys(entry["task"] for entry in entries):
            found = [e for e in entries if (e["method"], e["task"]) == (method, task)]
            left = {t: spread([100 * e["kept"][t] / e["units"] for e in found]) for t in tolerances}
            rows.append({"method": display(method), "task": task, **left})
    columns = [Column("method", "method"), Column("task", "task")]
    columns += [Column(t, f"left at {t}", "%", ".1f") for t in tolerances]
    return Table(columns, rows, "Units left, by the largest change of a probability that is allowed")


def curve_table(entries: Entries) -> Table:
    """Return scores along the curve, means over tasks: a row a method and share."""
    columns = (
        Column("method", "method"),
        Column("share", "kept", "%", ".0f"),
        Column("acc", "ACC", "%", ".1f"),
        Column("ece", "ECE", "%", ".1f"),
        Column("nll", "NLL", "nats", ".3f"),
        Column("difference", "max Δp", format=".3f"),
        Column("parameters", "parameters", format=",.0f"),
        Column("time", "time", format=".2f"),
    )
    keys = [column.key for column in columns[2:]]
    rows = []
    for method in _methods(entries):
        for point in range(len(entries[0]["curve"])):
            row: dict[str, Any] = {"method": display(method)}
            row["share"] = mean(e["curve"][point]["share"] for e in entries if e["method"] == method)
            rows.append(row | {key: spread(_by_seed(entries, method, point, key)) for key in keys})
    return Table(columns, rows, "Along the curve of kept rank, mean over tasks")


def curve_figure(entries: Entries) -> Figure:
    """Draw accuracy, NLL and the largest change of a probability against the share of units kept."""
    figure = new_figure(3.1 * len(SHOWN) + 0.3, 3.0)
    points = range(len(entries[0]["curve"]))
    for axes, (key, label) in zip(figure.subplots(1, len(SHOWN)), SHOWN.items(), strict=True):
        for index, method in enumerate(_methods(entries)):
            kept = [mean(e["curve"][p]["share"] for e in entries if e["method"] == method) for p in points]
            values = [mean(_by_seed(entries, method, p, key)) for p in points]
            axes.plot(
                kept,
                values,
                marker="osD"[index % 3],
                markersize=4,
                label=display(method),
                **line_style(index),
            )
        dress(axes, "Units kept (%)", label)
        axes.set_xlim(103, 0)
    legend_of(figure.axes[0], loc="best")
    return figure


def _methods(entries: Entries) -> list[str]:
    return list(dict.fromkeys(entry["method"] for entry in entries))


def _by_seed(entries: Entries, method: str, point: int, key: str) -> list[float]:
    """Return the means over tasks, one a seed."""
    own = [e for e in entries if e["method"] == method]
    return [
        mean(e["curve"][point][key] for e in own if e["seed"] == seed)
        for seed in dict.fromkeys(e["seed"] for e in own)
    ]

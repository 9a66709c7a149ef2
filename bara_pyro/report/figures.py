"""Figures of a run: reliability diagram, training curves, risk-coverage curves.

Every function returns a matplotlib `Figure`, which `report.style.save` writes to a file. pyplot is not used.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MultipleLocator
from torch import Tensor

from bara_pyro.errors import DataError
from bara_pyro.metrics.reliability import ReliabilityBins
from bara_pyro.report.style import (
    GREY,
    INK,
    NORMAL,
    PALETTE,
    SMALL,
    WIDTH,
    dress,
    legend_of,
    line_style,
    new_figure,
)

History = Sequence[Mapping[str, float | None]]
"""Records of one run, each with `step` and the parts of the loss at that step."""

PARTS: dict[str, str] = {
    "loss": "Negative ELBO",
    "nll": "Negative log-likelihood",
    "kl_theta": "KL, local gate θ",
    "kl_phi": "KL, global gate Φ",
}
"""Keys of the records of a history -> titles of their panels."""

COLUMNS = 4
"""The most systems side by side in a reliability diagram."""


def _need(named: Mapping[str, object], what: str) -> None:
    if not named:
        raise DataError(f"There is no {what} to draw: give at least one.")


def reliability_diagram(systems: Mapping[str, ReliabilityBins]) -> Figure:
    """Plot accuracy against confidence for each system, with the distribution of its rows below.

    Bars show the accuracy of each bin, hatched bars the gap to its mean confidence. The diagonal is perfect
    calibration. The title of each panel has the ECE.

    Args:
        systems: name -> `metrics.reliability_bins`, in plotting order.

    Raises:
        DataError: there is no system.
    """
    _need(systems, "system")
    columns = min(COLUMNS, len(systems))
    blocks = math.ceil(len(systems) / columns)
    figure = new_figure(max(2.75 * columns + 0.5, 3.6), 4.0 * blocks)
    grid = figure.add_gridspec(2 * blocks, columns, height_ratios=[3, 1] * blocks)
    for index, (name, bins) in enumerate(systems.items()):
        block, column = divmod(index, columns)
        upper = figure.add_subplot(grid[2 * block, column])
        lower = figure.add_subplot(grid[2 * block + 1, column], sharex=upper)
        _draw_bins(upper, bins, PALETTE[index % len(PALETTE)])
        _draw_counts(lower, bins, PALETTE[index % len(PALETTE)])
        first = column == 0
        dress(upper, "", "Accuracy" if first else "", f"{name}\nECE {bins.ece:.1f} %")
        dress(lower, "Confidence", "Rows (%)" if first else "")
        upper.tick_params(labelbottom=False, labelleft=first)
        lower.tick_params(labelleft=first)
    highest = max(100.0 * float(bins.counts.max() / bins.counts.sum()) for bins in systems.values())
    for lower in figure.axes[1::2]:
        lower.set_ylim(0, 1.08 * highest)  # the same scale for all systems
    line, accuracy, gap = figure.axes[0].get_legend_handles_labels()[0]
    if len(systems) > 1:
        accuracy = Patch(color=GREY)  # every system has another colour
    names = ["Perfect", "Accuracy", "Gap to confidence"]
    legend_of(figure, handles=[line, accuracy, gap], labels=names, loc="outside lower center", ncols=3)
    return figure


def _draw_bins(axes: Axes, bins: ReliabilityBins, color: str) -> None:
    """Plot the accuracy of one system, its gaps to the confidence and the diagonal."""
    filled = (bins.counts > 0).numpy()
    left = bins.edges[:-1].numpy()[filled]
    width = bins.edges.diff().numpy()[filled]
    accuracy, confidence = bins.accuracy.numpy()[filled], bins.confidence.numpy()[filled]
    axes.bar(
        left, accuracy, width, align="edge", color=color, edgecolor="white", linewidth=0.8, label="Accuracy"
    )
    axes.bar(
        left,
        confidence - accuracy,
        width,
        bottom=accuracy,
        align="edge",
        facecolor="none",
        edgecolor=GREY,
        linewidth=0.6,
        hatch="////",
        label="Gap to confidence",
    )
    axes.plot([0, 1], [0, 1], color=INK, linewidth=1.0, linestyle="--", label="Perfect")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.yaxis.set_major_locator(MultipleLocator(0.2))


def _draw_counts(axes: Axes, bins: ReliabilityBins, color: str) -> None:
    """Plot the percentage of one system's rows in each bin."""
    share = (100.0 * bins.counts / bins.counts.sum()).numpy()
    axes.bar(
        bins.edges[:-1].numpy(),
        share,
        bins.edges.diff().numpy(),
        align="edge",
        color=color,
        edgecolor="white",
        label="Rows",
    )
    axes.xaxis.set_major_locator(MultipleLocator(0.2))


def training_curves(
    runs: Mapping[str, History],
    window: int | None = None,
    title: str = "",
    parts: Sequence[str] | None = None,
) -> Figure:
    """Plot the negative ELBO and its parts against the step: raw values (pale) and their moving average.

    Parts that no run has get no panel. Without any KL (plain LoRA) the loss equals the NLL and is plotted
    once.

    Args:
        runs: name of a run -> its history: records with `step` and keys of `PARTS`, in nats per example;
            None for a part that was not recorded.
        window: number of records in the moving average; a twentieth of the longest run if None.
        title: title of the figure.
        parts: keys of `PARTS` to plot; those of `recorded_parts` if None.

    Raises:
        DataError: there is no run, or no run has a part to plot.
    """
    _need(runs, "run")
    parts = recorded_parts(runs) if parts is None else list(parts)
    longest = max(len(history) for history in runs.values())
    span = window or max(1, longest // 20)
    columns = min(2, len(parts))
    width = WIDTH if columns == 1 else 4.6 * columns
    figure = new_figure(width, 2.7 * math.ceil(len(parts) / columns) + 0.5)
    panels = figure.subplots(math.ceil(len(parts) / columns), columns, squeeze=False, sharex=True).flatten()
    for panel, part in zip(panels, parts, strict=False):
        for index, (name, history) in enumerate(runs.items()):
            _draw_part(panel, name, history, part, span, index)
        dress(panel, "", "nats per example", PARTS[part])
        panel.ticklabel_format(axis="y", scilimits=(-2, 4), useMathText=True)
        panel.yaxis.get_offset_text().set(fontsize=SMALL, color=GREY, ha="right", x=-0.02)
    for panel in panels[len(parts) :]:
        panel.remove()
    _label_lowest(list(panels[: len(parts)]), columns)
    legend_of(panels[0], loc="best")
    if title:
        figure.suptitle(title, fontsize=NORMAL + 3, color=INK, x=0.01, ha="left", parse_math=False)
    return figure


def recorded_parts(runs: Mapping[str, History]) -> list[str]:
    """Return the parts of the loss to plot, in the order of `PARTS`; a `DataError` if no history has any."""
    records = [record for history in runs.values() for record in history]
    parts = [part for part in PARTS if any(record.get(part) is not None for record in records)]
    if not parts:
        raise DataError(f"No history has any of {', '.join(PARTS)}: there is nothing to draw.")
    return ["nll"] if parts == ["loss", "nll"] else parts


def _draw_part(axes: Axes, name: str, history: History, part: str, span: int, index: int) -> None:
    """Plot one part of the loss of one run."""
    import pandas  # takes half a second

    points = [(record["step"], record[part]) for record in history if record.get(part) is not None]
    if not points:
        return
    steps, values = np.asarray(points, dtype=float).T
    style, span = line_style(index), min(span, len(values))
    mean = pandas.Series(values).rolling(span, center=True, min_periods=1).mean()
    axes.plot(steps, values, color=style["color"], alpha=0.25, linewidth=0.7)
    axes.plot(steps, mean, linewidth=1.8, label=name, **style)


def _label_lowest(panels: Sequence[Axes], columns: int) -> None:
    """Label the x axis of the lowest panel in each column, even if the last row is not full."""
    for panel in panels[-columns:]:
        panel.set_xlabel("Training step", fontsize=NORMAL, color=INK)
        panel.tick_params(labelbottom=True)


def risk_coverage_figure(curves: Mapping[str, tuple[Tensor, Tensor]]) -> Figure:
    """Plot the error rate of each system among the rows it answers, against the share of rows answered.

    Args:
        curves: name -> `metrics.risk_coverage` (coverage and risk, percent), in plotting order.

    Raises:
        DataError: there is no curve.
    """
    _need(curves, "curve")
    figure = new_figure(5.2, 3.8)
    axes = figure.add_subplot()
    for index, (name, (coverage, risk)) in enumerate(curves.items()):
        label = f"{name} (AURC {float(risk.mean()):.1f} %)"
        axes.plot(coverage.numpy(), risk.numpy(), linewidth=1.8, label=label, **line_style(index))
    dress(axes, "Coverage: rows answered, most confident first (%)", "Risk: wrong among them (%)")
    axes.set_xlim(0, 100)
    axes.set_ylim(bottom=0)
    legend_of(axes, loc="best")
    return figure

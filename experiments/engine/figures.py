"""The figures of an experiment, from records only; each can be read without colour.

Each function returns a matplotlib figure; `save` writes it.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bara_pyro.atomic import write_text
from bara_pyro.errors import DataError
from bara_pyro.report.style import GREY, INK, NORMAL, dress, legend_of, new_figure, svg_file
from experiments.engine.differences import AVERAGE
from experiments.engine.methods import in_order
from experiments.engine.values import display

PAGE = 5.0
"""Inches: of a figure whose letters can be read on a phone, where it is as wide as the screen."""


def save(figure: Figure, path: Path, alt: str) -> Path:
    """Write a figure as an SVG, whole or not at all; the same figure gives the same bytes.

    Args:
        figure: no wider than `PAGE`, or it has to be scrolled on a phone.
        path: of the file.
        alt: what it shows, for those who cannot see it.

    Raises:
        CheckpointError: the folder cannot be written to.
    """
    write_text(path, svg_file(figure, alt))
    return path


def draw_difference(axes: Axes, place: int, found: Mapping[str, float]) -> None:
    """Draw a difference with its interval; the mark is filled if the interval does not cover zero."""
    sides = [[found["difference"] - found["low"]], [found["high"] - found["difference"]]]
    face = "white" if found["low"] <= 0 <= found["high"] else INK
    axes.errorbar(found["difference"], place, xerr=np.maximum(sides, 0), fmt="o", color=INK,
                  markerfacecolor=face, markersize=6, capsize=3, elinewidth=1.4)  # fmt: skip


def name_rows(axes: Axes, names: Iterable[str], heading: str) -> None:
    """Name the rows of a figure, the first on top, and what is drawn in them."""
    labels = [*names]
    dress(axes, heading)
    axes.set_yticks(range(len(labels)), labels, fontsize=NORMAL, color=INK)
    axes.set_ylim(len(labels) - 0.5, -0.5)


def difference_figure(entries: Sequence[Mapping[str, Any]], reference: str) -> Figure:
    """Draw each arm's difference in NLL to the reference: the average with its interval, tasks as marks.

    The mark is filled where the interval does not cover zero. Infinite differences are left out.
    """
    found = [e for e in entries if e["reference"] == reference and e["nll"]["difference"] is not None]
    tasks = list(dict.fromkeys(e["task"] for e in found if e["task"] != AVERAGE))
    main = AVERAGE if any(e["task"] == AVERAGE for e in found) else tasks[0] if len(tasks) == 1 else None
    arms = in_order(dict.fromkeys(e["arm"] for e in found if e["task"] == main))
    if not arms:
        raise DataError(f"There is no difference to {display(reference)} in NLL to draw.")
    figure = new_figure(PAGE, 0.3 * len(arms) + 1.6)
    axes = figure.add_subplot()
    for place, arm in enumerate(arms):
        for e in (e for e in found if e["arm"] == arm):
            if e["task"] == main:
                draw_difference(axes, place, e["nll"])
            else:
                axes.plot(e["nll"]["difference"], place, "|", color=GREY, markersize=9, label=e["task"])
    axes.axvline(0, color=INK, linewidth=0.9, linestyle="--")
    name_rows(axes, map(display, arms), f"NLL minus that of {display(reference)} (nats)")
    mark: dict[str, Any] = {"marker": "o", "color": INK, "linestyle": "none"}
    what = f"{'mean over tasks' if main == AVERAGE else main}, {100 * found[0]['level']:g} % interval"
    handles = [Line2D([], [], label=what, **mark)]
    handles.append(Line2D([], [], markerfacecolor="white", label="covers zero", **mark))
    if main == AVERAGE:
        handles.append(Line2D([], [], marker="|", color=GREY, linestyle="none", label="one task"))
    legend_of(figure, handles=handles, loc="outside upper center", ncols=3)
    return figure

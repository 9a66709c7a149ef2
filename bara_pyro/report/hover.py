"""Hover texts of the points and bars of a figure: their names and values.

A name is the label of the plotted artist. A value is shown as the text of its tick if the axis has text
ticks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter

MOST = 500  # artists with more points get no hover texts, because nobody reads single points of a cloud
OF_WORDS = (FixedFormatter, FuncFormatter)  # formatters that `set_xticks(places, words)` sets
BESIDE = 0.15  # largest relative distance of a point from the number of its tick

Ends = Sequence[float] | None


@dataclass(frozen=True)
class Spot:
    """An area of a figure with a hover text.

    Attributes:
        box: left, upper, right and lower end in units of 1/72 inch, from the figure's upper left corner.
        text: a line with the name, if there is one, and a line for each value.
    """

    box: tuple[float, float, float, float]
    text: str


@dataclass(frozen=True)
class Mark:
    """A point or a bar: corners in data coordinates (equal for a point), values, ends of error bars."""

    drawn: Any
    corners: Sequence[tuple[float, float]]
    x: float
    y: float
    x_ends: Ends = None
    y_ends: Ends = None


def spots(figure: Figure) -> list[Spot]:
    """Return the hover texts of a drawn figure, in drawing order.

    They belong to points with markers or error bars, and to bars with a label.
    """
    height, scale = 72 * figure.get_size_inches()[1], 72 / figure.dpi
    all_spots = []
    for axes in figure.axes:
        for mark in _marks(axes):
            ends = np.sort(scale * axes.transData.transform(mark.corners).T)
            if np.isfinite(ends).all():
                (left, right), (low, high) = ends.tolist()
                notes = [
                    _name(mark.drawn),
                    _value(_label(axes, "x"), axes.xaxis, mark.x, mark.x_ends),
                    _value(_label(axes, "y"), axes.yaxis, mark.y, mark.y_ends),
                ]
                box = (left, height - high, right, height - low)
                all_spots.append(Spot(box, "\n".join(line for line in notes if line)))
    return all_spots


def _marks(axes: Axes) -> Iterator[Mark]:
    with_bars = [held for held in axes.containers if isinstance(held, ErrorbarContainer)]
    theirs = [held.lines[0] for held in with_bars]
    for line in axes.lines:
        if line not in theirs and line.get_marker() not in ("", "None", None):
            yield from _points(line, np.asarray(line.get_xydata()))
    for cloud in axes.collections:
        if isinstance(cloud, PathCollection):
            yield from _points(cloud, np.ma.filled(cloud.get_offsets(), np.nan))
    for held in with_bars:
        if held.lines[0] is not None:
            yield from _points(held, np.asarray(held.lines[0].get_xydata()), *_ends(held))
    for bars in axes.containers:
        if isinstance(bars, BarContainer) and _name(bars):
            yield from _bars(bars)


def _points(
    drawn: Any, places: np.ndarray, x_ends: Sequence[Ends] = (), y_ends: Sequence[Ends] = ()
) -> Iterator[Mark]:
    if len(places) <= MOST:
        for i, (x, y) in enumerate(places.tolist()):
            yield Mark(
                drawn, [(x, y), (x, y)], x, y, x_ends[i] if x_ends else None, y_ends[i] if y_ends else None
            )


def _bars(bars: BarContainer) -> Iterator[Mark]:
    _, ends = _ends(bars.errorbar) if bars.errorbar else ([], [])
    for i, bar in enumerate(bars.patches):
        (x0, y0), (x1, y1) = bar.get_bbox().get_points().tolist()
        yield Mark(bars, [(x0, y0), (x1, y1)], (x0 + x1) / 2, y1 - y0, None, ends[i] if ends else None)


def _ends(held: ErrorbarContainer) -> list[list[Ends]]:
    """Return the ends of horizontal and vertical error bars for each point; empty without error bars."""
    drawn, ends = iter(held.lines[2]), list[list[Ends]]()
    for axis, there in enumerate((held.has_xerr, held.has_yerr)):
        parts = next(drawn).get_segments() if there else []
        ends.append([[float(end[axis]) for end in part] or None for part in parts])
    return ends


def _name(drawn: Any) -> str:
    label = str(drawn.get_label() or "")
    return "" if label.startswith("_") else label


def _value(label: str, axis: Axis, value: float, ends: Ends) -> str:
    """Return the name of an axis and a value on it; empty for an axis with neither name nor numbers."""
    text = _tick(axis, value)
    if text is None:
        between = f" ({_number(ends[0])} to {_number(ends[1])})" if ends and ends[0] != ends[1] else ""
        text = f"{_number(value)}{between}"
    return f"{label}: {text}" if label and text else text


def _number(value: float) -> str:
    text = f"{value + 0.0:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return text.replace("-", "\N{MINUS SIGN}")


def _tick(axis: Axis, value: float) -> str | None:
    """Return the text of the nearest tick, or None for an axis with plain numbers.

    Bars of a group stand beside their tick, so the nearest one is theirs.
    """
    places, formatter = np.asarray(axis.get_majorticklocs(), dtype=float), axis.get_major_formatter()
    if not len(places):
        return ""
    if not (isinstance(axis.get_major_locator(), FixedLocator) and isinstance(formatter, OF_WORDS)):
        return None
    words = formatter.format_ticks(places.tolist())[int(np.abs(places - value).argmin())]
    try:
        number = float(words.replace(",", ""))
    except ValueError:
        return words
    return words if abs(number - value) <= BESIDE * abs(number) else None


def _label(axes: Axes, along: str) -> str:
    """Return the label of an axis, of a panel that shares it, or of the whole figure."""
    shared = axes.get_shared_x_axes() if along == "x" else axes.get_shared_y_axes()
    names = [getattr(one, f"get_{along}label")() for one in (axes, *shared.get_siblings(axes))]
    names.append(getattr(axes.figure, f"get_sup{along}label")())
    return " ".join(next((name for name in names if name), "").split())

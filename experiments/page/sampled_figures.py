"""Figures of studies of sampled replies; bands and bars are 95 % intervals, each arm by itself."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bara_pyro.metrics.intervals import Interval
from bara_pyro.report.style import GREY, INK, dress, legend_of, line_style, new_figure
from experiments.engine.results import distinct, having
from experiments.page.figures import PAGE, marked
from experiments.page.sampled_entries import (
    REFERENCE,
    Entry,
    arms,
    by_seed,
    diversity_of,
    drawn_arms,
    kinds,
    numbers_of,
    samples_of,
    scored,
    scores_of,
    target_of,
    taxes_of,
)
from experiments.page.sampled_intervals import along_temperatures, crossed
from experiments.page.values import display, student

WHOLE = (0.0, 100.0)  # percent: where bands of scores end


def curve_figure(entries: Sequence[Entry]) -> Figure:
    """Draw the expected best of n against n, with bands over seeds and prompts."""
    figure = new_figure(4.6, 3.4)
    axes = figure.subplots()
    numbers = numbers_of(entries)
    for index, (method, kind, name) in enumerate(drawn_arms(entries)):
        found = [crossed(by_seed(entries, method, kind, partial(scores_of, n=n))) for n in numbers]
        _banded(axes, numbers, found, label=name, **marked(index))
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(n) for n in numbers])
    dress(axes, "Replies n", "Best of n (%)")
    legend_of(axes, loc="lower right")
    return figure


def frontier_figure(entries: Sequence[Entry]) -> Figure:
    """Draw score against diversity over temperatures: a column a method, by draws and at its mean.

    The rows are one reply and the best of a few; LoRA is in every panel.
    """
    numbers = list(dict.fromkeys((1, target_of(entries))))
    methods = distinct(entries, "method")
    others = [method for method in methods if method != REFERENCE]
    figure = new_figure(PAGE, 2.2 * len(numbers) + 0.8)
    grid = figure.subplots(len(numbers), len(others), squeeze=False, sharex=True, sharey="row")
    for (row, n), (column, method) in product(enumerate(numbers), enumerate(others)):
        axes = grid[row, column]
        _frontier(axes, entries, REFERENCE, "mean", n, color=GREY, linestyle=":")
        for kind in kinds(entries, method):
            colour = line_style(methods.index(method))["color"]
            _frontier(axes, entries, method, kind, n, color=colour, **LOOKS[kind])
        dress(axes, title="" if row else display(method))
        if not column:
            axes.set_ylabel(f"Best of {n} (%)" if n > 1 else "One reply (%)", color=INK)
    figure.supxlabel("100 - Self-BLEU", fontsize="medium", color=INK)
    handles = [
        Line2D([], [], color=INK, markersize=4, label="by draws", **LOOKS["each"]),
        Line2D([], [], color=INK, markersize=4, label="at the posterior mean", **LOOKS["mean"]),
        Line2D([], [], color=GREY, linestyle=":", label=display(REFERENCE)),
    ]
    legend_of(figure, handles=handles, loc="outside upper center", ncols=3)
    return figure


LOOKS: dict[str, dict[str, Any]] = {
    "each": {"linestyle": "-", "marker": "o"},
    "mean": {"linestyle": "--", "marker": "o", "markerfacecolor": "white"},
}


def _frontier(axes: Axes, entries: Sequence[Entry], method: str, kind: str, n: int, **look: Any) -> None:
    diversities, scores = zip(*along_temperatures(entries, method, kind, n), strict=True)
    middles = [found.difference for found in diversities]
    _banded(axes, middles, scores, markersize=4, linewidth=1.2, **look)
    axes.hlines(
        [found.difference for found in scores],
        [found.low for found in diversities],
        [found.high for found in diversities],
        color=look["color"],
        linewidth=0.7,
    )


def _banded(axes: Axes, places: Sequence[float], found: Sequence[Interval], **look: Any) -> None:
    """Draw scores in percent as a line with the band of their intervals."""
    low, high = (np.clip([getattr(one, end) for one in found], *WHOLE) for end in ("low", "high"))
    axes.plot(places, [one.difference for one in found], **look)
    axes.fill_between(places, low, high, alpha=0.12, linewidth=0, color=look["color"])


def entropy_figure(entries: Sequence[Entry]) -> Figure:
    """Draw the score of the best of a few against entropy, at temperature 1; diversity where nothing scores.

    Bars are over seeds and prompts, of the entropy over seeds alone: it is not kept by prompts.
    """
    figure = new_figure(4.8, 3.6)
    axes = figure.subplots()
    methods, few = distinct(entries, "method"), target_of(entries)
    read = partial(scores_of, n=few) if scored(entries) else diversity_of
    for method, kind, name in arms(entries):
        found = crossed(by_seed(entries, method, kind, read))
        entropy = [samples_of(entry, kind)["entropy"] for entry in having(entries, method=method)]
        style = marked(methods.index(method)) | {"linestyle": "none"}
        face = style["color"] if kind == kinds(entries, method)[0] else "none"
        axes.errorbar(mean(entropy), found.difference, _sides(found), _over_seeds(entropy), label=name,
                      markerfacecolor=face, elinewidth=0.7, **style)  # fmt: skip
    dress(axes, "Entropy of a token (nats)", f"Best of {few} (%)" if scored(entries) else "100 - Self-BLEU")
    legend_of(figure, loc="outside right upper")
    return figure


def _sides(found: Interval) -> list[list[float]]:
    return [[found.difference - found.low], [found.high - found.difference]]


def _over_seeds(values: Sequence[float]) -> float | None:
    """Return half of Student's interval over seeds; of one seed there is none."""
    return student(values)["high"] - mean(values) if len(values) > 1 else None


def tax_figure(entries: Sequence[Entry]) -> Figure:
    """Draw the tax of each method on every task and its mean over them: a group of bars a task."""
    methods = distinct(entries, "method")
    figure = new_figure(PAGE, 3.6)
    axes = figure.subplots()
    width = 0.8 / len(methods)
    taxes: dict[str, list[float]] = {}
    for index, method in enumerate(methods):
        taxes = taxes_of(entries, method)
        places = np.arange(len(taxes)) + (index - (len(methods) - 1) / 2) * width
        bars = [_over_seeds(values) or 0.0 for values in taxes.values()]
        heights = [mean(values) for values in taxes.values()]
        axes.bar(places, heights, width, yerr=bars, color=line_style(index)["color"], label=display(method),
                 error_kw={"elinewidth": 0.7, "capsize": 1.5, "color": INK})  # fmt: skip
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.axvline(len(taxes) - 1.5, color=GREY, linewidth=0.8)  # the mean stands apart
    dress(axes, "", "After minus before (points)")
    axes.set_xticks(range(len(taxes)), taxes, rotation=20, ha="right")
    legend_of(figure, loc="outside upper center", ncols=3)
    return figure

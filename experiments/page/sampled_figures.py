"""Figures of studies of sampled replies."""

from collections.abc import Sequence
from statistics import mean

import numpy as np
from matplotlib.figure import Figure

from bara_pyro.metrics import prompt_weights
from bara_pyro.report.style import dress, legend_of, new_figure
from experiments.engine.results import distinct, having
from experiments.page.figures import marked
from experiments.page.sampled_entries import (
    Entry,
    curve,
    drawn_arms,
    numbers_of,
    prompts_of,
    samples_of,
    scores_of,
    sweep,
    target_of,
    tax_of,
)
from experiments.page.values import display


def curve_figure(entries: Sequence[Entry]) -> Figure:
    """Draw the expected best of n against n, with bands over prompts."""
    figure = new_figure(4.6, 3.4)
    axes = figure.subplots()
    weights, numbers = prompt_weights(prompts_of(entries)), numbers_of(entries)
    for index, (method, kind, name) in enumerate(drawn_arms(entries)):
        values = curve(entries, method, kind)
        low, high = np.quantile(weights @ values, [0.025, 0.975], axis=0)
        style = marked(index)
        axes.plot(numbers, values.mean(axis=0), label=name, **style)
        axes.fill_between(numbers, low, high, alpha=0.12, linewidth=0, color=style.get("color"))
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(n) for n in numbers])
    dress(axes, "Replies n", "Best of n (%)")
    legend_of(axes, loc="lower right")
    return figure


def frontier_figure(entries: Sequence[Entry]) -> Figure:
    """Draw score against diversity over temperatures, of one reply and of the best of a few."""
    numbers = list(dict.fromkeys((1, target_of(entries))))
    figure = new_figure(4.1 * len(numbers), 3.4)
    for axes, n in zip(figure.subplots(1, len(numbers), squeeze=False)[0], numbers, strict=True):
        for index, (method, kind, name) in enumerate(drawn_arms(entries)):
            score, diversity = sweep(entries, method, kind, n).mean(axis=0).T
            axes.plot(diversity, score, label=name, **marked(index))
        dress(axes, "100 - Self-BLEU", f"Best of {n} (%)" if n > 1 else "One reply (%)")
    legend_of(figure.axes[0], loc="best")
    return figure


def entropy_figure(entries: Sequence[Entry]) -> Figure:
    """Draw the score of the best of a few against entropy, a point a seed."""
    figure = new_figure(4.6, 3.4)
    axes = figure.subplots()
    for index, (method, kind, name) in enumerate(drawn_arms(entries)):
        points = [samples_of(entry, kind) for entry in having(entries, method=method)]
        values = [float(scores_of(s, target_of(entries)).mean()) for s in points]
        style = marked(index) | {"linestyle": "none"}
        axes.plot([s["entropy"] for s in points], values, label=name, **style)
    dress(axes, "Entropy of a token (nats)", f"Best of {target_of(entries)} (%)")
    legend_of(axes, loc="best")
    return figure


def tax_figure(entries: Sequence[Entry]) -> Figure:
    """Draw the tax of each method as a bar."""
    figure = new_figure(4.6, 3.0)
    axes = figure.subplots()
    for index, method in enumerate(distinct(entries, "method")):
        values = [tax_of(entry, "acc") for entry in having(entries, method=method)]
        error = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        axes.bar(index, mean(values), yerr=error, width=0.6, color=marked(index).get("color"), capsize=3)
    names = [display(method) for method in distinct(entries, "method")]
    axes.set_xticks(range(len(names)), names, rotation=20)
    axes.axhline(0, color="0.4", linewidth=0.8)
    dress(axes, "", "After minus before (points)")
    return figure

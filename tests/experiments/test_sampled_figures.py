"""Figures of sampled replies: what they draw is what is stored, and bands are as wide as by hand.

Made scores are a seed's part plus a prompt's, so that the crossed interval has a closed form: variances of
means add up, and nothing is left between seeds and prompts.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from scipy.special import stdtrit

from experiments.engine.replies import numbers
from experiments.engine.results import Results
from experiments.page.parts import Picture, tables_of
from experiments.page.replies import (
    UNSCORED,
    frontier_figure,
    parts,
)

PROMPTS = 40
BY_SEED = np.array([-1.0, 0.5, 2.0])  # percent
BY_PROMPT = np.random.default_rng(0).integers(-80, 80, PROMPTS) / 10
METHODS = ("lora", "blob", "bara-gate")
TEMPERATURES = (0.6, 1.0)
TASKS = ("one", "two")
DRAWN = math.sqrt(2 / 2000)  # relative error of a variance that 2,000 draws of prompts estimate


def score(method: str, kind: str, temperature: float, n: int) -> float:
    """The part of a score that neither seed nor prompt changes."""
    return 40 + 3 * METHODS.index(method) + (kind == "mean") - 5 * temperature + 2 * math.log2(n)


def entry(method: str, seed: int, worth: float = 1.0) -> dict[str, Any]:
    kinds = ("mean",) if method == "lora" else ("each", "mean")
    noise = BY_SEED[seed] + BY_PROMPT
    samples = [
        {
            "draws": kind,
            "temperature": t,
            "best": {str(n): numbers(worth * 10 * (score(method, kind, t, n) + noise)) for n in (1, 2, 4, 8)},
            "diversity": numbers(10 * (30 + 10 * t + noise)),
            "distinct": [30.0, 40.0],
            "entropy": 0.8 + 0.01 * METHODS.index(method) + 0.1 * BY_SEED[seed],
        }
        for kind in kinds
        for t in TEMPERATURES
    ]
    shift = METHODS.index(method) * (seed + 1.0)
    tax = {task: {"acc": 50.0 + shift + i} for i, task in enumerate(TASKS)}
    before = {task: {"acc": 50.0} for task in TASKS}
    return {"method": method, "seed": seed, "nll": 1.0, "samples": samples, "tax": tax, "before": before}


@pytest.fixture(scope="module")
def entries() -> list[dict[str, Any]]:
    # As the pages of studies have them, seeds do not come in order.
    return [entry(method, seed) for seed in (2, 0, 1) for method in METHODS]


def half_width(seeds: Sequence[float] = BY_SEED) -> float:
    """Student's half-width of a mean over seeds and prompts, degrees of freedom by Satterthwaite."""
    parts = [(float(np.var(values, ddof=1)) / len(values), len(values) - 1) for values in (seeds, BY_PROMPT)]
    total = sum(variance for variance, _ in parts)
    df = total**2 / sum(variance**2 / df for variance, df in parts)
    return float(stdtrit(df, 0.975)) * math.sqrt(total)


def middle(method: str, kind: str, temperature: float, n: int) -> float:
    return score(method, kind, temperature, n) + BY_SEED.mean() + BY_PROMPT.mean()


def bands(axes: Axes) -> list[dict[float, tuple[float, float]]]:
    """Of each band, in the order in which they are drawn, place -> its lower and upper end."""
    found = []
    for area in (c for c in axes.collections if "Fill" in type(c).__name__):
        ends: dict[float, list[float]] = {}
        for x, y in area.get_paths()[0].vertices:
            ends.setdefault(round(float(x), 6), []).append(float(y))
        found.append({x: (min(ys), max(ys)) for x, ys in ends.items()})
    return found


def check_bands(axes: Axes, lines: Sequence[Any]) -> None:
    """Every line runs in the middle of its band, whose width is that by hand."""
    assert len(bands(axes)) == len(lines)
    for line, band in zip(lines, bands(axes), strict=True):
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
            low, high = band[round(float(x), 6)]
            assert (low + high) / 2 == pytest.approx(y)
            assert (high - low) / 2 == pytest.approx(half_width(), rel=2 * DRAWN)


def test_frontiers_have_bands_over_seeds_and_prompts(entries: list[dict[str, Any]]) -> None:
    axes = frontier_figure(entries).axes
    assert len(axes) == 4  # one reply and the best of two, for BLoB and the gate form
    expected = [middle("bara-gate", "each", temperature, 1) for temperature in TEMPERATURES]
    assert axes[1].lines[1].get_ydata() == pytest.approx(expected, abs=0.06)
    check_bands(axes[1], axes[1].lines)


def shown(entries: Sequence[dict[str, Any]]) -> tuple[list[str], list[Any]]:
    """The names of a page's figures, and its other parts."""
    found = list(parts(Results("x", Path(), {}, {str(i): e for i, e in enumerate(entries)})))
    return [p.name for p in found if isinstance(p, Picture)], [p for p in found if not isinstance(p, Picture)]


def test_where_nothing_scores_empty_figures_are_left_out(entries: list[dict[str, Any]]) -> None:
    pictures, others = shown(entries)
    assert pictures == ["x-frontier"]
    assert UNSCORED not in others
    nothing = [entry(method, seed, worth=0.0) for seed in range(3) for method in METHODS]
    pictures, others = shown(nothing)
    assert pictures == []
    assert UNSCORED in others
    # Differences; scores and tax.
    assert [len(tables_of(part)) for part in others if part != UNSCORED] == [1, 2]

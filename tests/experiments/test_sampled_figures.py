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
from matplotlib.colors import to_hex
from scipy.special import stdtrit

from bara_pyro.report import Table
from experiments.engine.replies import numbers
from experiments.engine.results import Results
from experiments.page.parts import Picture
from experiments.page.replies import (
    UNSCORED,
    curve_figure,
    entropy_figure,
    frontier_figure,
    parts,
    tax_figure,
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


def test_the_best_of_n_has_bands_over_seeds_and_prompts(entries: list[dict[str, Any]]) -> None:
    [axes] = curve_figure(entries).axes
    assert [line.get_label() for line in axes.lines] == ["MLE (LoRA)", "BLoB", "BaRA gate"]
    expected = [middle("bara-gate", "each", 1.0, n) for n in (1, 2, 4, 8)]
    assert axes.lines[2].get_ydata() == pytest.approx(expected, abs=0.06)
    check_bands(axes, axes.lines)


def test_a_frontier_has_draws_and_mean_of_each_method_with_bands(entries: list[dict[str, Any]]) -> None:
    figure = frontier_figure(entries)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["BLoB", "BaRA gate", "", ""]
    for axes, (method, n) in zip(
        figure.axes, [(m, n) for n in (1, 2) for m in ("blob", "bara-gate")], strict=True
    ):
        lora, drawn, mean = axes.lines
        assert (drawn.get_linestyle(), mean.get_linestyle()) == ("-", "--")
        assert to_hex(drawn.get_color()) == to_hex(mean.get_color()) != to_hex(lora.get_color())
        for line, arm in ((lora, ("lora", "mean")), (drawn, (method, "each")), (mean, (method, "mean"))):
            assert line.get_ydata() == pytest.approx([middle(*arm, t, n) for t in TEMPERATURES], abs=0.06)
            diversity = [30 + 10 * t + BY_SEED.mean() + BY_PROMPT.mean() for t in TEMPERATURES]
            assert line.get_xdata() == pytest.approx(diversity, abs=0.06)
        check_bands(axes, axes.lines)
        bars = [s for c in axes.collections if "Line" in type(c).__name__ for s in c.get_segments()]
        assert len(bars) == 6
        for (low, _), (high, _) in bars:
            assert (high - low) / 2 == pytest.approx(half_width(), rel=2 * DRAWN)


def test_entropy_has_bars_over_seeds_and_scores_over_both(entries: list[dict[str, Any]]) -> None:
    [axes] = entropy_figure(entries).axes
    assert [c.get_label() for c in axes.containers] == [
        *("MLE (LoRA)", "BLoB", "BLoB, mean", "BaRA gate", "BaRA gate, mean"),
    ]
    point, _, (level, upright) = axes.containers[3]
    assert point.get_xdata() == pytest.approx([0.82 + 0.1 * BY_SEED.mean()])
    assert point.get_ydata() == pytest.approx([middle("bara-gate", "each", 1.0, 2)], abs=0.06)
    (left, _), (right, _) = level.get_segments()[0]
    by_seeds = float(stdtrit(2, 0.975)) * 0.1 * float(np.std(BY_SEED, ddof=1)) / math.sqrt(3)
    assert (right - left) / 2 == pytest.approx(by_seeds)
    (_, low), (_, high) = upright.get_segments()[0]
    assert low < point.get_ydata()[0] < high
    assert (high - low) / 2 == pytest.approx(half_width(), rel=2 * DRAWN)


def test_the_tax_has_a_group_a_task_and_one_of_the_mean(entries: list[dict[str, Any]]) -> None:
    [axes] = tax_figure(entries).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == [*TASKS, "mean"]
    bars = [c for c in axes.containers if hasattr(c, "errorbar")]
    assert [c.get_label() for c in bars] == ["MLE (LoRA)", "BLoB", "BaRA gate"]
    assert [bar.get_height() for bar in bars[2]] == pytest.approx([4, 5, 4.5])  # 2 times 1, 2 and 3
    places = [bar.get_x() + bar.get_width() / 2 for bar in bars[1]]
    assert places == pytest.approx([0, 1, 2])
    segments = bars[2].errorbar.lines[2][0].get_segments()
    half = float(stdtrit(2, 0.975)) * 2 / math.sqrt(3)
    for ((_, low), (_, high)), height in zip(segments, (4, 5, 4.5), strict=True):
        assert (low, high) == pytest.approx((height - half, height + half))


def test_of_one_seed_bars_are_over_prompts_alone(entries: list[dict[str, Any]]) -> None:
    one = [found for found in entries if found["seed"] == 1]
    half = float(stdtrit(PROMPTS - 1, 0.975)) * float(np.std(BY_PROMPT, ddof=1)) / math.sqrt(PROMPTS)
    [axes] = curve_figure(one).axes
    low, high = bands(axes)[0][1.0]
    assert (high - low) / 2 == pytest.approx(half, rel=2 * DRAWN)
    [axes] = entropy_figure(one).axes
    assert all(len(container[2]) == 1 for container in axes.containers)  # no level bar
    [axes] = tax_figure(one).axes
    for bars in (c for c in axes.containers if hasattr(c, "errorbar")):
        assert all(low[1] == high[1] for low, high in bars.errorbar.lines[2][0].get_segments())


def shown(entries: Sequence[dict[str, Any]]) -> tuple[list[str], list[Any]]:
    """The names of a page's figures, and its other parts."""
    found = list(parts(Results("x", Path(), {}, {str(i): e for i, e in enumerate(entries)})))
    return [p.name for p in found if isinstance(p, Picture)], [p for p in found if not isinstance(p, Picture)]


def test_where_nothing_scores_empty_figures_are_left_out(entries: list[dict[str, Any]]) -> None:
    pictures, others = shown(entries)
    assert pictures == ["x-best-of-n", "x-frontier", "x-entropy", "x-tax"]
    assert UNSCORED not in others
    nothing = [entry(method, seed, worth=0.0) for seed in range(3) for method in METHODS]
    pictures, others = shown(nothing)
    assert pictures == ["x-entropy", "x-tax"]
    assert UNSCORED in others
    assert sum(isinstance(part, Table) for part in others) == 3  # scores, differences, tax
    [axes] = entropy_figure(nothing).axes
    assert axes.get_ylabel() == "100 - Self-BLEU"
    diversity = 40 + BY_SEED.mean() + BY_PROMPT.mean()
    assert axes.containers[0][0].get_ydata() == pytest.approx([diversity], abs=0.06)

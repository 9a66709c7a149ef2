"""The figures of an experiment, from records only; each can be read without colour.

Each function returns a matplotlib figure; `save` writes it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation
from matplotlib.ticker import MultipleLocator
from matplotlib.transforms import Bbox

from bara_pyro.errors import DataError
from bara_pyro.report.style import (
    GREY,
    INK,
    NORMAL,
    PALE,
    PALETTE,
    SMALL,
    dress,
    legend_of,
    line_style,
    new_figure,
)
from bara_pyro.report.svg import svg_file
from bara_pyro.runs.atomic import write_text
from experiments.engine.differences import AVERAGE
from experiments.engine.methods import in_order, tagged
from experiments.engine.record import Record
from experiments.engine.results import Study
from experiments.page.values import display, draws_of, over_tasks, score

# Where a name may stand, seen from its point, in the order of preference: direction and alignment.
SIDES = (
    (1, 0, "left", "center"),
    (-1, 0, "right", "center"),
    (0, 1, "center", "bottom"),
    (0, -1, "center", "top"),
    (1, 1, "left", "bottom"),
    (1, -1, "left", "top"),
    (-1, 1, "right", "bottom"),
    (-1, -1, "right", "top"),
)
DISTANCES = (7, 12, 18, 26, 36, 48)  # points
Point = tuple[float, float]
MARK = 5.0  # half the side of the box that a point takes, in pixels


def place_labels(
    axes: Axes, names: Sequence[str], points: Sequence[Point], lines: Sequence[tuple[Point, Point]] = ()
) -> None:
    """Write each name at the nearest place around its point that is free; a line leads to distant ones.

    The axes have everything drawn, their limits are final. Points and the ends of `lines`, upright or level
    ones that are kept free, too, are in data coordinates.
    """
    figure = axes.figure
    figure.canvas.draw()  # the layout is final from here on
    frame = axes.get_window_extent()
    centres = axes.transData.transform(points)
    taken = [Bbox.from_extents(x - MARK, y - MARK, x + MARK, y + MARK) for x, y in centres]
    for ends in lines:
        (x0, y0), (x1, y1) = axes.transData.transform(ends)
        taken.append(Bbox.from_extents(x0 - 1, y0 - 1, x1 + 1, y1 + 1))
    for name, point in zip(names, points, strict=True):
        taken.append(_place(axes, name, point, taken, frame))


def _place(axes: Axes, name: str, point: Point, taken: Sequence[Bbox], frame: Bbox) -> Bbox:
    """Write one name and return the box that it takes; where nothing is free, the least bad place is."""
    candidates: list[tuple[float, int, dict[str, Any], Bbox]] = []
    for distance in DISTANCES:
        for dx, dy, across, upright in SIDES:
            options = {
                "xytext": (dx * distance, dy * distance),
                "ha": across,
                "va": upright,
                "arrowprops": _line() if distance > DISTANCES[1] else None,
            }
            box = _box(axes, name, point, options)
            hidden = sum(_overlap(box, other) for other in taken)
            outside = box.width * box.height - _overlap(box, frame)
            candidates.append((hidden + outside, len(candidates), options, box))
    _, _, options, box = min(candidates, key=lambda c: (round(c[0], 3), c[1]))
    _annotate(axes, name, point, options)
    return box


def _annotate(axes: Axes, name: str, point: Point, options: dict[str, Any]) -> Annotation:
    return axes.annotate(
        name, point, textcoords="offset points", fontsize=SMALL, color=INK, parse_math=False, **options
    )


def _box(axes: Axes, name: str, point: Point, options: dict[str, Any]) -> Bbox:
    text = _annotate(axes, name, point, {**options, "arrowprops": None})
    box = text.get_window_extent().padded(2)
    text.remove()
    return box


def _line() -> dict[str, Any]:
    return {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}


def _overlap(a: Bbox, b: Bbox) -> float:
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    return max(width, 0.0) * max(height, 0.0)


COLUMNS = 3
PAGE = 5.0
"""Inches: of a figure whose letters can be read on a phone, where it is as wide as the screen."""

FILL = PALETTE[0]
Bins = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of each bin of confidence the number of rows, their accuracy and their confidence, NaN without rows."""


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


def panels(number: int, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure and its first `number` small panels of one scale: `COLUMNS` a row, of four two."""
    columns = 2 if number == 4 else min(COLUMNS, number)
    rows = -(-number // columns)
    figure = new_figure((PAGE - 0.5) / COLUMNS * columns + 0.5, height * rows + 0.5)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for spare in grid.flatten()[number:]:
        spare.remove()
    for above in grid.flatten()[number - columns : columns * (rows - 1)]:
        above.tick_params(labelbottom=True)  # nothing below it
    return figure, list(grid.flatten()[:number])


def legend_below(figure: Figure, ncols: int = 3, loc: str = "outside lower center") -> None:
    """Write what stands in the first panel once for all of them."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    legend_of(figure, handles=handles, labels=labels, loc=loc, ncols=ncols)


def marked(index: int, size: float = 4.0) -> dict[str, Any]:
    """Return colour, dashes and marker of the `index`-th line."""
    return {"marker": "osDv^"[index % 5], "markersize": size, **line_style(index)}


def reliability_figure(study: Study, task: str) -> Figure:
    """Draw accuracy against confidence for each arm on one task, under the largest S, seeds pooled by bins.

    The narrow bars are the share of rows in each bin. The title has the mean of the seeds' ECEs; that of
    the pooled bins would be smaller.
    """
    found = {}
    for arm, (records, samples) in _arms_on(study, task).items():
        ece = np.mean([record["metrics"][samples]["ece"] for record in records])
        bins = pooled_bins([record["reliability"][samples] for record in records])
        found[f"{display(arm)}\nECE {ece:.1f} %"] = bins
    return reliability_panels(found)


def reliability_panels(found: Mapping[str, Bins]) -> Figure:
    """Draw accuracy against confidence: title -> what `pooled_bins` returns, a panel each."""
    figure, axes = panels(len(found), 1.85)
    for panel, (title, bins) in zip(axes, found.items(), strict=True):
        _draw_reliability(panel, *bins)
        _title(panel, title)
    axes[0].set(xlim=(0, 1), ylim=(0, 1))
    figure.supxlabel("confidence of the answer", fontsize=NORMAL, color=INK)
    figure.supylabel("share", fontsize=NORMAL, color=INK)
    handles = [
        Line2D([], [], color=INK, linewidth=1.0, linestyle="--", label="perfect"),
        Patch(facecolor=FILL, label="right answers in the bin"),
        Patch(facecolor="none", edgecolor=GREY, hatch="////", label="gap to confidence"),
        Patch(facecolor="white", edgecolor=INK, linewidth=0.6, label="share of rows"),
    ]
    legend_of(figure, handles=handles, loc="outside upper center", ncols=2)
    return figure


def pooled_bins(bins: Sequence[Mapping[str, Sequence[float | None]]]) -> Bins:
    """Return counts, accuracy and confidence of several runs' bins together; NaN where there is no row."""
    counts = np.array([b["counts"] for b in bins], dtype=float)
    total = counts.sum(axis=0)

    def merged(key: str) -> np.ndarray:
        means = np.nan_to_num(np.array([b[key] for b in bins], dtype=float))
        sums = (means * counts).sum(axis=0)
        return np.divide(sums, total, out=np.full(len(total), np.nan), where=total > 0)

    return total, merged("accuracy"), merged("confidence")


def _draw_reliability(axes: Axes, counts: np.ndarray, accuracy: np.ndarray, confidence: np.ndarray) -> None:
    width = 1 / len(counts)
    left = np.arange(len(counts)) * width
    right = "right answers in the bin"
    axes.bar(left, accuracy, width, align="edge", color=FILL, edgecolor="white", linewidth=0.4, label=right)
    gap: dict[str, Any] = {"facecolor": "none", "edgecolor": GREY, "linewidth": 0.5, "hatch": "/////"}
    axes.bar(left, confidence - accuracy, width, bottom=accuracy, align="edge", **gap)
    share: dict[str, Any] = {"color": "white", "edgecolor": INK, "linewidth": 0.6}
    axes.bar(left + width / 2, counts / counts.sum(), 0.4 * width, **share)
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle="--")
    axes.xaxis.set_major_locator(MultipleLocator(0.5))
    axes.yaxis.set_major_locator(MultipleLocator(0.5))


def _title(axes: Axes, text: str) -> None:
    dress(axes)
    axes.set_title(text, fontsize=SMALL, color=INK, loc="left", y=1.0, parse_math=False)


def risk_coverage_figure(study: Study, task: str, reference: str = "lora") -> Figure:
    """Draw how often each arm errs on its most confident rows against how many it answers: one panel an arm.

    Each panel has its arm's curve (mean over seeds, largest S), the reference's dashed, the others' in grey.
    """
    arms = _arms_on(study, task)
    coverage = next(iter(arms.values()))[0][0]["risk_coverage"]["coverage"]
    curves = {
        arm: np.mean([record["risk_coverage"][samples] for record in records], axis=0)
        for arm, (records, samples) in arms.items()
    }
    few = [*range(0, len(coverage) - 1, 2), -1]  # points of the others: a panel is too small for more
    figure, axes = panels(len(arms), 1.7)
    for panel, (arm, curve) in zip(axes, curves.items(), strict=True):
        for other in curves.values():
            panel.plot(*np.array([coverage, other])[:, few], color=PALE, linewidth=0.7)
        if reference in curves and arm != reference:
            panel.plot(coverage, curves[reference], color=INK, linewidth=1.1, linestyle="--")
        panel.plot(coverage, curve, color=FILL, linewidth=2.0)
        records, samples = arms[arm]
        area = np.mean([record["metrics"][samples]["aurc"] for record in records])
        _title(panel, f"{display(arm)}\narea {area:.1f} %")
    axes[0].set(xlim=(0, 100), ylim=(0, None))
    axes[0].xaxis.set_major_locator(MultipleLocator(50))
    figure.supxlabel("coverage: rows answered, most confident first (%)", fontsize=NORMAL, color=INK)
    figure.supylabel("risk: wrong among them (%)", fontsize=NORMAL, color=INK)
    handles = [
        Line2D([], [], color=FILL, linewidth=2.0, label="this method"),
        Line2D([], [], color=INK, linewidth=1.1, linestyle="--", label=display(reference)),
        Line2D([], [], color=PALE, linewidth=0.9, label="the others"),
    ]
    legend_of(figure, handles=handles, loc="outside upper center", ncols=3)
    return figure


def _arms_on(study: Study, task: str) -> dict[str, tuple[list[Record], str]]:
    """Return the finished records of each arm on a task, and the largest S."""
    found = {}
    for arm in in_order(study.arms):
        seeds = study.arms[arm].get(task, {})
        records = [record for record in seeds.values() if "failed" not in record]
        if records:
            found[arm] = (records, draws_of({task: seeds})[-1])
    if not found:
        raise DataError(f"There are no finished runs of {study.name} on {task}: choose another task.")
    return found


def accuracy_ece_figure(study: Study) -> Figure:
    """Draw each arm's ECE against its accuracy, mean over tasks, bars of one standard deviation over seeds.

    Arms that failed on a task, or have no runs there, have no point.
    """
    figure = new_figure(PAGE, 4.4)
    axes = figure.add_subplot()
    names, points, bars = [], [], []
    for arm in in_order(study.arms):
        tasks = study.arms[arm]
        samples = (draws_of(tasks) or [""])[-1]
        values = [over_tasks(tasks, study.tasks, score(samples, metric)) for metric in ("acc", "ece")]
        numbers = [v if isinstance(v, tuple) else (v, 0.0) for v in values if not isinstance(v, str | None)]
        if len(numbers) < 2:
            continue
        (x, x_error), (y, y_error) = numbers
        ours = arm.partition(", ")[0] in tagged("ours")
        axes.errorbar(x, y, y_error, x_error, fmt="D" if ours else "o", color=FILL if ours else INK,
                      markersize=6, ecolor=GREY, elinewidth=0.8, label=display(arm))  # fmt: skip
        names.append(display(arm))
        points.append((x, y))
        bars += [((x - x_error, y), (x + x_error, y)), ((x, y - y_error), (x, y + y_error))]
    if not names:
        raise DataError(f"No arm of {study.name} has finished on all tasks: there is no point to draw.")
    dress(axes, "accuracy (%), mean over tasks", "ECE (%), mean over tasks")
    axes.set_ylim(bottom=0)
    axes.margins(0.12)
    place_labels(axes, names, points, bars)
    return figure


def difference_figure(entries: Sequence[Mapping[str, Any]], reference: str, metric: str = "nll") -> Figure:
    """Draw each arm's difference to the reference: the average with its interval, the tasks as small marks.

    The mark is filled where the interval does not cover zero. Infinite differences are left out.
    """
    found = [e for e in entries if e["reference"] == reference and e[metric]["difference"] is not None]
    tasks = list(dict.fromkeys(e["task"] for e in found if e["task"] != AVERAGE))
    main = AVERAGE if any(e["task"] == AVERAGE for e in found) else tasks[0] if len(tasks) == 1 else None
    arms = [arm for arm in in_order(dict.fromkeys(e["arm"] for e in found if e["task"] == main))]
    if not arms:
        raise DataError(f"There is no difference to {display(reference)} in {metric} to draw.")
    figure = new_figure(PAGE, 0.3 * len(arms) + 1.6)
    axes = figure.add_subplot()
    for place, arm in enumerate(arms):
        for e in (e for e in found if e["arm"] == arm):
            value = e[metric]
            if e["task"] != main:
                axes.plot(value["difference"], place, "|", color=GREY, markersize=9, label=e["task"])
                continue
            sides = [[value["difference"] - value["low"]], [value["high"] - value["difference"]]]
            face = "white" if value["low"] <= 0 <= value["high"] else INK
            axes.errorbar(value["difference"], place, xerr=np.maximum(sides, 0), fmt="o", color=INK,
                          markerfacecolor=face, markersize=6, capsize=3, elinewidth=1.4)  # fmt: skip
    axes.axvline(0, color=INK, linewidth=0.9, linestyle="--")
    unit = {"nll": " (nats)", "acc": " (points)", "ece": " (points)"}.get(metric, "")
    dress(axes, f"{metric.upper()} minus that of {display(reference)}{unit}")
    axes.set_yticks(range(len(arms)), [display(arm) for arm in arms], fontsize=NORMAL, color=INK)
    axes.set_ylim(len(arms) - 0.5, -0.5)
    _legend_of_differences(figure, found[0]["level"], main)
    return figure


def _legend_of_differences(figure: Figure, level: float, main: str | None) -> None:
    mark: dict[str, Any] = {"marker": "o", "color": INK, "linestyle": "none"}
    what = "mean over tasks" if main == AVERAGE else str(main)
    handles = [
        Line2D([], [], label=f"{what}, {100 * level:g} % interval", **mark),
        Line2D([], [], markerfacecolor="white", label="covers zero", **mark),
    ]
    if main == AVERAGE:
        handles.append(Line2D([], [], marker="|", color=GREY, linestyle="none", label="one task"))
    legend_of(figure, handles=handles, loc="outside upper center", ncols=3)

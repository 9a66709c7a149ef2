"""Names beside the points of a scatter, so that they hide neither the points nor each other."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from bara_pyro.report.style import GREY, INK, SMALL

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

"""The style of all figures, set on each artist without global settings, and their PNG and SVG files.

Pages, figures and the site share its colours as CSS custom properties, for light and dark mode.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from bara_pyro.atomic import atomic_write

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito (2008), safe for colour blindness, without yellow (unreadable on white)."""

DASHES = ("-", "--", "-.", ":")
"""Line styles: with the palette they distinguish 28 systems, and neighbouring ones also without colour."""

INK, GREY, GRID = "#1f2328", "#59636e", "#e4e4e4"
PALE = "#c9c9c9"
"""Colour of reference lines, fainter than GREY."""

SMALL, NORMAL, LARGE = 8.5, 10.0, 11.5
DPI = 160
WIDTH = 4.0
"""Width of a figure in inches that can be read on a phone."""


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure (size in inches) with its own Agg canvas, unknown to pyplot."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


Look = dict[str, Any]
"""Keyword arguments of matplotlib's lines."""


def line_style(index: int) -> Look:
    """Return the colour and line style of the `index`-th system."""
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": DASHES[index % len(DASHES)]}


def dress(axes: Axes, x_label: str = "", y_label: str = "", title: str = "") -> None:
    """Apply the common style to axes and set their labels."""
    axes.set_xlabel(x_label, fontsize=NORMAL, color=INK)
    axes.set_ylabel(y_label, fontsize=NORMAL, color=INK)
    # Names of systems may hold a dollar sign, which would otherwise start a formula.
    # The explicit height keeps titles of a row aligned when one axis shows a power of ten above it.
    axes.set_title(title, fontsize=LARGE, color=INK, loc="left", y=1.0, parse_math=False)
    axes.tick_params(labelsize=SMALL, colors=GREY, length=3)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)


def legend_of(where: Axes | Figure, **options: Any) -> None:
    """Add the common legend to axes or to a whole figure, its names taken literally."""
    legend = where.legend(fontsize=SMALL, frameon=False, labelcolor=INK, **options)
    for text in legend.get_texts():
        text.set_parse_math(False)


def png_bytes(figure: Figure) -> bytes:
    """Return the figure as a PNG file's content, the same bytes for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def save(figure: Figure, path: Path | str) -> Path:
    """Write a figure to a PNG file and return its path; an error leaves no partial file."""
    content = png_bytes(figure)
    atomic_write(Path(path), lambda file: file.write(content))
    return Path(path)


DAY = {
    "ink": INK,
    "soft": GREY,
    "line": "#d1d9e0",
    "grid": GRID,
    "pale": PALE,
    "page": "#ffffff",
    "stripe": "#f6f8fa",
    "mark": PALETTE[0].lower(),
    **{f"c{i}": colour.lower() for i, colour in enumerate(PALETTE[:-1])},
}
NIGHT = {
    "ink": "#e6edf3",
    "soft": "#9aa4af",
    "line": "#3d444d",
    "grid": "#2b323b",
    "pale": "#4d5661",
    "page": "#0d1117",
    "stripe": "#161b22",
    "mark": "#58a6e0",
    "c0": "#58a6e0",
    "c1": "#ff8a3d",
    "c2": "#2fc596",
    "c3": "#e39cc4",
    "c4": "#f0b429",
    "c5": "#8fd0f7",
}


def properties(colours: Mapping[str, str] = DAY) -> str:
    """Return CSS declarations of colours."""
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def as_the_system(names: Iterable[str] = DAY) -> str:
    """Return CSS that defines these colours for light mode, and for dark mode if the system uses it."""
    day, night = (properties({name: theme[name] for name in names}) for theme in (DAY, NIGHT))
    # Print in light colours, because paper is white.
    return f":root {{ {day} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {night} }} }}"


COLOURS = ("#08306b", "#2171b5", "#6baed6", "#c6dbef", "#f7fbff")
EQUAL = 0.179  # relative luminance at which black and white text have the same contrast, 4.6


def shade(share: float, colours: Sequence[str] = COLOURS) -> str:
    """Return the colour (`#rrggbb`) at a position of a scale, from 0 (its first colour) to 1 (its last)."""
    at = max(0.0, min(1.0, share)) * (len(colours) - 1)
    i = min(len(colours) - 2, int(at))
    ends = zip(channels(colours[i]), channels(colours[i + 1]), strict=True)
    return "#" + "".join(f"{round(low + (high - low) * (at - i)):02x}" for low, high in ends)


def letters(ground: str) -> str:
    """Return black or white, whichever has the higher contrast on a background (WCAG 2.2), at least 4.5."""
    shares = [part / 255 for part in channels(ground)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    luminance = sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#ffffff" if luminance < EQUAL else "#000000"


def channels(colour: str) -> list[int]:
    """Return red, green and blue (0 to 255) of a colour `#rrggbb`."""
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


# Colours of `report.style` -> CSS custom properties, which have other values in dark mode.
VARIABLES = {
    INK: "ink",
    GREY: "soft",
    GRID: "grid",
    PALE: "pale",
    "#ffffff": "page",
    **{colour.lower(): f"c{i}" for i, colour in enumerate(PALETTE[:-1])},
    PALETTE[-1]: "ink",
}
COLOUR = re.compile("|".join(VARIABLES), re.IGNORECASE)
CLOUD = 2000  # a scatter with more points is rasterized, to keep the file small
STYLE = files("bara_pyro.report").joinpath("templates", "figure.css").read_text(encoding="utf-8")
ALONE = re.compile(r"<style>.*?</style><rect [^>]*/>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")


def svg_file(figure: Figure, alt: str) -> str:
    """Return a figure as the text of an SVG file, with light or dark colours depending on the system.

    The same figure always gives the same text. `inlined` makes it part of a page.

    Args:
        figure: a figure in the colours of `report.style`; other colours do not change in dark mode.
        alt: text alternative for screen readers.
    """
    drawn = _drawn(figure, "n")
    used = [colour for colour in DAY if f"var(--{colour})" in drawn or colour in ("ink", "page")]
    inches = figure.get_size_inches()
    (width, height), (wide, high) = 72 * inches, 96 * inches
    return (
        '<svg class="drawn" xmlns:xlink="http://www.w3.org/1999/xlink" xmlns="http://www.w3.org/2000/svg" '
        f'width="{wide:g}" height="{high:g}" role="img" aria-label="{escape(alt)}" '
        f'viewBox="0 0 {width:g} {height:g}"><style>\n{as_the_system(used)}\n{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="var(--page)"/>\n{drawn}</svg>\n'
    )


def inlined(file: str, prefix: str) -> str:
    """Return the text of `svg_file` as an element for a page with its own colours and `figure.css`."""
    return _own_identifiers(ALONE.sub("", file, count=1), prefix)


def _drawn(figure: Figure, prefix: str) -> str:
    """Return the content of the `<svg>` element."""
    for axes in figure.axes:
        for cloud in axes.collections:
            if isinstance(cloud, PathCollection) and len(np.asarray(cloud.get_offsets())) > CLOUD:
                cloud.set_rasterized(True)
    buffer = io.StringIO()
    # Keep text as text, and write the same bytes every time.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bara_pyro"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    markup = buffer.getvalue()
    markup = markup[markup.index(">", markup.index("<svg")) + 1 : markup.rindex("</svg>")]
    markup = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", markup, flags=re.DOTALL)
    markup = _own_identifiers(markup, prefix)
    markup = COLOUR.sub(lambda match: f"var(--{VARIABLES[match[0].lower()]})", markup)
    # Use the font of the page: phones lack those of matplotlib.
    markup = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font-size: \1px", markup)
    markup = re.sub(r"font-family: [^;\"]+;?", "", markup)
    # Two decimals of 1/72 inch are enough, and make the file smaller.
    markup = TAG.sub(lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), markup)
    return "\n".join(line.strip() for line in markup.splitlines() if line.strip())


def _own_identifiers(markup: str, prefix: str) -> str:
    """Return markup with identifiers made of prefix and number; unused identifiers are removed."""
    used = dict.fromkeys(re.findall(r'(?:url\(#|href="#)([^")]+)', markup))
    names = {old: f"{prefix}{number}" for number, old in enumerate(used)}
    markup = re.sub(r' id="([^"]+)"', lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", markup)
    return re.sub(r'(url\(#|href="#)([^")]+)', lambda m: f"{m[1]}{names[m[2]]}", markup)

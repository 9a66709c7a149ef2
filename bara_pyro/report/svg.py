"""Convert a figure to SVG with real text, the colours of the page (light or dark) and values on hover."""

import io
import re
from html import escape
from importlib.resources import files
from itertools import groupby

import matplotlib
import numpy as np
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from bara_pyro.report.hover import Spot, spots
from bara_pyro.report.style import DAY, GREY, GRID, INK, PALE, PALETTE, as_the_system

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
REACH = 5.0  # radius around a point in which its values are shown, in units of 1/72 inch
STYLE = files("bara_pyro.report").joinpath("templates", "figure.css").read_text(encoding="utf-8")
ALONE = re.compile(r"<style>.*?</style><rect [^>]*/>", re.DOTALL)


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
    return compact(markup) + _values(spots(figure))


def _own_identifiers(markup: str, prefix: str) -> str:
    """Return markup with identifiers made of prefix and number; unused identifiers are removed."""
    used = dict.fromkeys(re.findall(r'(?:url\(#|href="#)([^")]+)', markup))
    names = {old: f"{prefix}{number}" for number, old in enumerate(used)}
    markup = re.sub(r' id="([^"]+)"', lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", markup)
    return re.sub(r'(url\(#|href="#)([^")]+)', lambda m: f"{m[1]}{names[m[2]]}", markup)


def _values(marks: list[Spot]) -> str:
    """Return invisible areas with titles that a browser shows on hover."""
    if not marks:
        return ""
    return "\n".join(['\n<g class="values">', *map(_area, marks), "</g>\n"])


def _area(spot: Spot) -> str:
    left, upper, right, lower = spot.box
    shape = f'rect x="{left:.1f}" y="{upper:.1f}" width="{right - left:.1f}" height="{lower - upper:.1f}"'
    if (left, upper) == (right, lower):
        shape = f'circle cx="{left:.1f}" cy="{upper:.1f}" r="{REACH:g}"'
    return f"<{shape}><title>{escape(spot.text)}</title></{shape.split()[0]}>"


TAG = re.compile(r"<[^>]+>")
PART = re.compile(r"([A-Za-z])([^A-Za-z]*)")
SHAPE = re.compile(r'(<(?:path|use) .*?)((?: clip-path="[^"]*")?(?: style="[^"]*")?)/>')
EMPTY = re.compile(r'<path d="M 0 0 z"[^>]*/>|<g ?/>')  # bars of height 0


def compact(markup: str) -> str:
    """Return markup without its invisible parts: extra digits, spaces, empty groups and repeated styles.

    Coordinates keep one decimal, those below ten keep two. Text is unchanged.
    """
    markup = EMPTY.sub("", TAG.sub(lambda tag: _tag(" ".join(tag[0].split())), markup))
    lines = (line.strip() for line in markup.splitlines())
    return "\n".join(_alike_together(_without_bare_groups([line for line in lines if line])))


def _tag(tag: str) -> str:
    tag = re.sub(r"(\d\d\.\d)\d+", r"\1", re.sub(r"(\d\.\d\d)\d+", r"\1", tag))
    tag = re.sub(r"(\d)\.0+(?!\d)", r"\1", tag.replace(": ", ":").replace("; ", ";"))
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"', "", tag)
    return re.sub(r' d="([^"]*)"', lambda path: f' d="{_path(path[1])}"', tag)


def _path(path: str) -> str:
    """Return a path in which successive lines name only the first command."""
    shown, last = list[str](), ""
    for command, match in PART.findall(path):
        numbers = match.strip()
        shown.append(numbers if command == "L" and last in ("M", "L") else f"{command} {numbers}".strip())
        last = command
    return " ".join(shown)


def _without_bare_groups(lines: list[str]) -> list[str]:
    """Return lines (one tag each) without groups that have no attributes."""
    shown, shown_groups = list[str](), list[bool]()
    for line in lines:
        if line == "</g>":
            if not shown_groups.pop():
                continue
        elif line.startswith("<g") and not line.endswith("/>"):
            shown_groups.append(line != "<g>")
            if not shown_groups[-1]:
                continue
        shown.append(line)
    return shown


def _alike_together(lines: list[str]) -> list[str]:
    """Return lines in which successive shapes of the same style are in a group that has this style."""
    shown = list[str]()
    for look, run in groupby(lines, _look):
        alike = list(run)
        if look and len(alike) > 1:
            shown += [f"<g{look}>", *(line.replace(look, "") for line in alike), "</g>"]
        else:
            shown += alike
    return shown


def _look(line: str) -> str:
    """Return the style attributes of a shape; empty if moving them to a group would change its look."""
    match = SHAPE.fullmatch(line)
    return "" if match is None or "opacity" in match[2] else match[2]

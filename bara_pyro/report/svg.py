"""Convert a figure to SVG with real text and the colours of the page (light or dark)."""

import io
import re
from html import escape
from importlib.resources import files

import matplotlib
import numpy as np
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

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

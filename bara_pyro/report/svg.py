"""A figure as markup inside a page: text stays text, colours are the page's, by day and by night."""

import io
import re
from html import escape

import matplotlib
from matplotlib.figure import Figure

from bara_pyro.report.style import GREY, GRID, INK, PALETTE

# Colours of `report.style` -> custom properties of the page's style sheet, which has a set for the dark.
VARIABLES = {
    INK: "--ink",
    GREY: "--soft",
    GRID: "--grid",
    "#ffffff": "--page",
    **{colour.lower(): f"--c{i}" for i, colour in enumerate(PALETTE[:-1])},
    PALETTE[-1]: "--ink",
}
COLOUR = re.compile("|".join(VARIABLES), re.IGNORECASE)


def svg_markup(figure: Figure, alt: str, prefix: str) -> str:
    """Return a figure as one `<svg>` element without a background.

    Args:
        figure: drawn in the colours of `report.style`; others stay as they are in the dark, too.
        alt: what it shows, for those who cannot see it.
        prefix: before each identifier, so that no two figures of a page share one.
    """
    buffer = io.StringIO()
    # Text as text, the same bytes each time.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bara_pyro"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    markup = buffer.getvalue()
    markup = markup[markup.index("<svg") :]
    markup = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", markup, flags=re.DOTALL)
    markup = _own_identifiers(markup, prefix)
    markup = COLOUR.sub(lambda found: f"var({VARIABLES[found[0].lower()]})", markup)
    # The page's own font: a phone has none of matplotlib's.
    markup = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font-size: \1px", markup)
    markup = re.sub(r"font-family: [^;\"]+;?", "", markup)
    markup = re.sub(r"(\d\.\d\d)\d+", r"\1", " ".join(markup.split()))
    width, height = (72 * inches for inches in figure.get_size_inches())
    return (
        '<svg xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'aria-label="{escape(alt)}" viewBox="0 0 {width:g} {height:g}">{markup[markup.index(">") + 1 :]}'
    )


def _own_identifiers(markup: str, prefix: str) -> str:
    """Put the prefix before identifiers that are referred to, and drop the others."""
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', markup))
    markup = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "", markup)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", markup)

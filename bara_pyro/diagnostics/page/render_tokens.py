"""Token maps of the gates: a section of the report, a figure, and a page with all layers."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from bara_pyro.atomic import write_text
from bara_pyro.diagnostics.gates.tokens import TextUse, TokenUse
from bara_pyro.diagnostics.parts import Shown, shown_section
from bara_pyro.errors import DataError
from bara_pyro.report import ColourScale, Link, Paragraph, Shaded, Word
from bara_pyro.report.blocks import Block
from bara_pyro.report.html import document, source, template_environment
from bara_pyro.report.style import COLOURS, EQUAL, INK, LARGE, SMALL, channels, letters, new_figure, shade

PAGE, PACKAGE = "tokens.html", "bara_pyro.diagnostics.page"
CLOSE = 5.0  # percent: a smaller range over tokens counts as no difference
COLUMNS, WIDTH = 3, 46  # of the figure: texts side by side, characters in a line
# Pure white and black are theme colours in an SVG and swap in dark mode; the shades of tokens must not.
FIXED = {"#ffffff": "#fefefe", "#000000": "#010101"}


def render_tokens(found: TokenUse) -> Shown:
    """Return the section with each text, its tokens shaded by the mean over modules."""
    values = [value for text in found.texts for value in text.mean if not math.isnan(value)]
    low, high = min(values), max(values)
    fewest, most = (_where(found, value) for value in (low, high))
    words = "The gates hardly depend on the word"
    if high - low > CLOSE:
        words = "The gates depend on the word"
    plain = (
        f"{words}: {low:.0f} % of them are nearly off for {fewest} (fewest), {high:.0f} % for {most} (most)."
    )
    technical = [
        f"In the tokens of {len(found.texts)} texts between {low:.0f} and {high:.0f} % of the gates Φθ are "
        f"below {found.tau:g}, averaged over {max(found.draws, 1)} draws."
    ]
    label = "share of gates that are nearly off; light: few gates in use"
    blocks: list[Block] = [
        Paragraph(["For single layers and the value of each token see the ", Link("token maps", PAGE), "."]),
        ColourScale(COLOURS, f"{low:.1f} %", f"{high:.1f} %", label),
        *(_shaded(text, low, high) for text in found.texts),
    ]
    return shown_section("Gates by token", plain, technical, blocks)


def _where(use: TokenUse, value: float) -> str:
    pairs = ((t, mean) for text in use.texts for t, mean in zip(text.tokens, text.mean, strict=True))
    return next(repr(token.strip()) for token, mean in pairs if mean == value)


def _shaded(text: TextUse, low: float, high: float) -> Shaded:
    words = []
    for token, value in zip(text.tokens, text.mean, strict=True):
        ground = shade((value - low) / (high - low) if high > low else 0.5)
        words.append(Word(with_visible_spaces(token), ground, letters(ground), f"{value:.1f} % nearly off"))
    return Shaded(text.title, words)


def with_visible_spaces(token: str) -> str:
    """Return a token with symbols for line breaks and blanks."""
    return token.replace("\n", "⏎").strip() or "␣"


def token_page(found: TokenUse, path: Path, title: str) -> Path:
    """Write token maps as one self-contained HTML file with a choice of layer and the value of each token.

    Raises:
        DataError: there are no texts.
        CheckpointError: the file cannot be written.
    """
    _check_texts(found)
    texts = [
        {"title": t.title, "tokens": [with_visible_spaces(token) for token in t.tokens]} for t in found.texts
    ]
    body = template_environment(PACKAGE).get_template("tokens.html").render(
        tau=f"{found.tau:g}", draws=max(found.draws, 1), colours=COLOURS, texts=texts
    )  # fmt: skip
    data = {
        "modules": found.modules,
        # Layer 0 is the mean over layers. One decimal, as displayed.
        "texts": [[_rounded(t.mean), *map(_rounded, t.percent)] for t in found.texts],
        "scale": [channels(colour) for colour in COLOURS],
        "equal": EQUAL,
    }
    # Module names are arbitrary: "</script>" in one must not end the script.
    plain = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    script = f"const data = {plain};\n{source(PACKAGE, 'tokens.js')}"
    page = document(title, body=Markup(body), style=source(PACKAGE, "tokens.css"), script=script)  # noqa: S704
    write_text(path, page)
    return path


def _rounded(values: Sequence[float]) -> list[float]:
    return [0.0 if math.isnan(value) else round(value, 1) for value in values]


def _check_texts(use: TokenUse) -> None:
    if not use.texts:
        raise DataError("There are no token maps to draw: give at least one text.")


def token_figure(found: TokenUse) -> Figure:
    """Draw texts with tokens shaded by the share of gates that are nearly off; light means few in use.

    Raises:
        DataError: there are no texts.
    """
    _check_texts(found)
    columns = min(COLUMNS, len(found.texts))
    laid = [_lines([with_visible_spaces(token) for token in text.tokens]) for text in found.texts]
    blocks = [laid[i : i + columns] for i in range(0, len(laid), columns)]
    heights = [max(lines[-1][1] + 1 for lines in block) + 2 for block in blocks]
    figure = new_figure(4.3 * columns, 0.24 * sum(heights) + 0.9)
    grid = figure.add_gridspec(len(blocks), columns, height_ratios=heights)
    values = [value for text in found.texts for value in text.mean]
    norm = Normalize(min(values), max(*values, min(values) + 0.1))
    for number, (text, places) in enumerate(zip(found.texts, laid, strict=True)):
        axes = figure.add_subplot(grid[number // columns, number % columns])
        axes.set(xlim=(0, WIDTH + 2), ylim=(heights[number // columns], -0.5))
        axes.axis("off")
        axes.set_title(text.title, fontsize=LARGE, color=INK, loc="left", parse_math=False)
        for token, value, (column, line) in zip(text.tokens, text.mean, places, strict=True):
            ground, word = shade(float(norm(value))), with_visible_spaces(token)
            axes.barh(line + 0.5, len(word), height=0.86, left=column, color=ground)
            axes.text(
                column, line + 0.5, word, fontsize=SMALL, family="monospace", va="center", parse_math=False,
                color=FIXED[letters(ground)],
            )  # fmt: skip
    colours = LinearSegmentedColormap.from_list("gates", COLOURS)
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=figure.axes, orientation="horizontal", aspect=60)
    bar.set_label("Expected share of gates nearly off (%): light is sparse", fontsize=SMALL, color=INK)
    bar.ax.tick_params(labelsize=SMALL)
    return figure


def _lines(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Return the column and line of each token, for lines of at most `WIDTH` characters."""
    places, column, line = [], 0, 0
    for token in tokens:
        if column and column + len(token) > WIDTH:
            column, line = 0, line + 1
        places.append((column, line))
        column += len(token) + 1
    return places

"""Token maps for print: one picture of all texts, mean over modules. Light is sparse."""

from collections.abc import Sequence

from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from bara_pyro.diagnostics.gates.tokens import TokenUse
from bara_pyro.diagnostics.page.render_tokens import as_read
from bara_pyro.diagnostics.page.shades import COLOURS, letters, shade
from bara_pyro.errors import DataError
from bara_pyro.report.style import INK, LARGE, SMALL, new_figure

COLUMNS, WIDTH = 3, 46  # texts side by side, letters a line


def token_figure(found: TokenUse) -> Figure:
    """Draw the texts with their tokens shaded by the share of gates that are nearly off.

    Raises:
        DataError: there are no texts.
    """
    if not found.texts:
        raise DataError("There are no token maps to draw: give at least one text.")
    columns = min(COLUMNS, len(found.texts))
    laid = [_lines([as_read(token) for token in text.tokens]) for text in found.texts]
    blocks = [laid[i : i + columns] for i in range(0, len(laid), columns)]
    heights = [max(lines[-1][1] + 1 for lines in block) + 2 for block in blocks]
    figure = new_figure(4.3 * columns, 0.24 * sum(heights) + 0.9)
    grid = figure.add_gridspec(len(blocks), columns, height_ratios=heights)
    values = [value for text in found.texts for value in text.mean]
    norm = Normalize(min(values), max(max(values), min(values) + 0.1))
    for number, (text, places) in enumerate(zip(found.texts, laid, strict=True)):
        axes = figure.add_subplot(grid[number // columns, number % columns])
        axes.set(xlim=(0, WIDTH + 2), ylim=(heights[number // columns], -0.5))
        axes.axis("off")
        axes.set_title(text.title, fontsize=LARGE, color=INK, loc="left", parse_math=False)
        for token, value, (column, line) in zip(text.tokens, text.mean, places, strict=True):
            ground, word = shade(float(norm(value))), as_read(token)
            axes.barh(line + 0.5, len(word), height=0.86, left=column, color=ground)
            axes.text(
                column, line + 0.5, word, fontsize=SMALL, family="monospace", va="center", parse_math=False,
                color=letters(ground),
            )  # fmt: skip
    colours = LinearSegmentedColormap.from_list("gates", COLOURS)
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=figure.axes, orientation="horizontal", aspect=60)
    bar.set_label("Expected share of gates nearly off (%): light is sparse", fontsize=SMALL, color=INK)
    bar.ax.tick_params(labelsize=SMALL)
    return figure


def _lines(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Return column and line of each token, lines of at most `WIDTH` letters, a space between tokens."""
    places, column, line = [], 0, 0
    for token in tokens:
        if column and column + len(token) > WIDTH:
            column, line = 0, line + 1
        places.append((column, line))
        column += len(token) + 1
    return places

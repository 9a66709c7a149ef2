"""The figures of a run that `bara inspect` looked into, for the pages on posterior and Pyro.

    bara train micro-wgs --steps 300 --out runs/first
    bara inspect runs/first --deep
    python -m docs.tools.inspected --run runs/first

The pages name the figures and describe each for readers who cannot see it.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from bara_pyro.cli.terminal import say
from bara_pyro.diagnostics.context import FOLDER
from bara_pyro.diagnostics.inspection import NUMBERS, Inspection, sections
from bara_pyro.diagnostics.parts.tokens import TokenUse, with_visible_spaces
from bara_pyro.report.style import COLOURS, INK, LARGE, SMALL, letters, new_figure, shade
from bara_pyro.untrusted.files import read_json
from experiments.engine.arguments import command_line, start
from experiments.engine.figures import save

DOCS = Path(__file__).parents[2] / "docs"
COLUMNS, WIDTH = 3, 46  # of the token maps: texts side by side, characters in a line
# Pure white and black are theme colours in an SVG and swap in dark mode; the shades of tokens must not.
FIXED = {"#ffffff": "#fefefe", "#000000": "#010101"}
SHOWN = re.compile(r"!\[(?P<alt>[^\]]+)\]\((?P<file>inspect/(?P<name>\w+)\.svg)\)")


def main() -> None:
    """Draw what the pages show."""
    parser = command_line(__doc__)
    parser.add_argument("--run", metavar="DIR", type=Path, default=Path("runs/first"),
        help="folder of a run that `bara inspect` looked into; default: %(default)s")  # fmt: skip
    report = parser.parse_args().run / FOLDER
    found = Inspection.model_validate(read_json(report / NUMBERS))
    drawn = {picture.name: picture.figure for part in sections(found, report) for picture in part.pictures}
    if found.tokens is not None:
        drawn["tokens"] = token_figure(found.tokens)
    text = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("posterior.md", "swap.md"))
    for match in SHOWN.finditer(text):
        say(f"Written: {save(drawn[match['name']], DOCS / match['file'], match['alt'])}")


def token_figure(found: TokenUse) -> Figure:
    """Draw texts with tokens shaded by the share of gates that are nearly off; light means few in use."""
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


if __name__ == "__main__":
    start(main)

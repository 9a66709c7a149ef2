"""Token maps to look at: one HTML file with a choice of layers, and a picture for print. Light is sparse."""

import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from bara_pyro.errors import DataError
from bara_pyro.report.html import document
from bara_pyro.report.style import INK, LARGE, SMALL, new_figure
from bara_pyro.runs.store import write_text

if TYPE_CHECKING:
    from bara_pyro.diagnostics.gates.tokens import TokenMap

# One hue from dark (dense) to light (sparse): it keeps its order in greyscale.
COLOURS = ("#08306b", "#2171b5", "#6baed6", "#c6dbef", "#f7fbff")
DARK = 0.32  # of the scale: white letters below, dark ones above; both have a contrast of 4 there
COLUMNS, WIDTH = 3, 46  # texts side by side in the picture, letters a line

STYLE = """
.bar { height: 1rem; max-width: 24rem; border: 1px solid var(--line); }
.ends { display: flex; justify-content: space-between; max-width: 24rem; color: var(--soft); }
.text { font: 1rem/2 ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace; margin: 0.3rem 0 2rem; }
.text span { padding: 0.15rem 0.1rem; border-radius: 3px; white-space: pre-wrap; }
.bar, .text span { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.text span:focus-visible { outline: 2px solid #d55e00; }
select { font: inherit; max-width: 100%; }
output { display: block; position: sticky; bottom: 0; padding: 0.6rem 0; background: var(--page); }
output:empty { display: none; }
@media print { output { display: none; } }
"""

BODY = Template("""<p>$about</p>
<p><label>Layers: <select id="layer"></select></label></p>
<div class="bar" role="img" aria-label="colour scale: dark is dense, light is sparse"
  style="background: linear-gradient(to right, $colours)"></div>
<div class="ends"><span id="low"></span><span>gates nearly off (%)</span><span id="high"></span></div>
$texts
<output id="value"></output>""")

SCRIPT = Template("""
const data = $data;
const scale = $scale;
const select = document.getElementById("layer");
["all layers, mean", ...data.modules].forEach((name, i) => select.add(new Option(name, i)));
function colour(share) {
  const at = Math.max(0, Math.min(1, share)) * (scale.length - 1);
  const i = Math.min(scale.length - 2, Math.floor(at));
  const mix = scale[i].map((c, k) => Math.round(c + (scale[i + 1][k] - c) * (at - i)));
  return `rgb($${mix.join(",")})`;
}
function draw() {
  const layer = Number(select.value), rows = data.texts.map(text => text[layer]);
  const all = rows.flat(), low = Math.min(...all), high = Math.max(...all);
  document.getElementById("low").textContent = low.toFixed(1);
  document.getElementById("high").textContent = high.toFixed(1);
  document.querySelectorAll(".text").forEach((text, t) => [...text.children].forEach((span, i) => {
    const share = high > low ? (rows[t][i] - low) / (high - low) : 0.5;
    span.style.background = colour(share);
    span.style.color = share < $dark ? "#fff" : "#111";
    span.title = `$${rows[t][i].toFixed(1)} % of gates nearly off`;
  }));
  show(document.activeElement);
}
// Without a mouse no title is shown: by keyboard and on a phone the value stands at the foot of the screen.
function show(span) {
  const chosen = span.closest(".text span");
  document.getElementById("value").textContent = chosen ? `$${chosen.textContent}: $${chosen.title}` : "";
}
document.addEventListener("focusin", event => show(event.target));
select.addEventListener("change", draw);
draw();
""")


def token_page(maps: Sequence["TokenMap"], path: Path, title: str, about: str) -> Path:
    """Write token maps as one HTML file that needs nothing else: layers to choose, values on hover.

    Args:
        maps: of `bara_pyro.diagnostics.gates.tokens.token_maps`.
        path: of the file.
        title: the heading.
        about: a paragraph on what is shown.

    Raises:
        DataError: there are no maps.
        CheckpointError: the file cannot be written.
    """
    _need(maps)
    # Layer 0 is the mean; one decimal, which is what the page shows.
    texts = [[_rounded(m.mean.tolist()), *map(_rounded, m.percent.tolist())] for m in maps]
    data = json.dumps({"modules": list(maps[0].modules), "texts": texts}, separators=(",", ":"))
    scale = [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in COLOURS]
    spans = "\n".join(
        f'<h2>{escape(m.title)}</h2>\n<div class="text">{"".join(_span(token) for token in m.tokens)}</div>'
        for m in maps
    )
    body = BODY.substitute(about=escape(about), colours=", ".join(COLOURS), texts=spans)
    # A module's name may hold anything: "</script>" must not end the script.
    script = SCRIPT.substitute(data=data.replace("<", "\\u003c"), scale=json.dumps(scale), dark=DARK)
    write_text(path, document(title, body, style=STYLE, script=script))
    return path


def token_figure(maps: Sequence["TokenMap"]) -> Figure:
    """Draw token maps, mean over layers: light is sparse.

    Raises:
        DataError: there are no maps.
    """
    _need(maps)
    columns = min(COLUMNS, len(maps))
    laid = [_lines([_shown(token) for token in m.tokens]) for m in maps]
    blocks = [laid[i : i + columns] for i in range(0, len(maps), columns)]
    heights = [max(lines[-1][1] + 1 for lines in block) + 2 for block in blocks]
    figure = new_figure(4.3 * columns, 0.24 * sum(heights) + 0.9)
    grid = figure.add_gridspec(len(blocks), columns, height_ratios=heights)
    values = [float(v) for m in maps for v in m.mean]
    norm = Normalize(min(values), max(max(values), min(values) + 0.1))
    colours = LinearSegmentedColormap.from_list("gates", COLOURS)
    for number, (m, places) in enumerate(zip(maps, laid, strict=True)):
        axes = figure.add_subplot(grid[number // columns, number % columns])
        axes.set(xlim=(0, WIDTH + 2), ylim=(heights[number // columns], -0.5))
        axes.axis("off")
        axes.set_title(m.title, fontsize=LARGE, color=INK, loc="left", parse_math=False)
        for token, value, (column, line) in zip(m.tokens, m.mean.tolist(), places, strict=True):
            share = float(norm(value))
            text = _shown(token)
            axes.barh(line + 0.5, len(text), height=0.86, left=column, color=colours(share))
            axes.text(
                column, line + 0.5, text, fontsize=SMALL, family="monospace", va="center", parse_math=False,
                color="white" if share < DARK else INK,
            )  # fmt: skip
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=figure.axes, orientation="horizontal", aspect=60)
    bar.set_label("Expected share of gates nearly off (%): light is sparse", fontsize=SMALL, color=INK)
    bar.ax.tick_params(labelsize=SMALL)
    return figure


def _need(maps: Sequence["TokenMap"]) -> None:
    if not maps:
        raise DataError("There are no token maps to draw: give at least one text.")


def _rounded(values: Sequence[float]) -> list[float]:
    return [0.0 if math.isnan(value) else round(value, 1) for value in values]


def _span(token: str) -> str:
    # Focusable, so that the value is reached by keyboard, too.
    return f'<span tabindex="0">{escape(_shown(token))}</span> '


def _shown(token: str) -> str:
    return token.replace("\n", "⏎").strip() or "␣"


def _lines(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Return column and line of each token, lines of at most `WIDTH` letters, a space between tokens."""
    places, column, line = [], 0, 0
    for token in tokens:
        if column and column + len(token) > WIDTH:
            column, line = 0, line + 1
        places.append((column, line))
        column += len(token) + 1
    return places

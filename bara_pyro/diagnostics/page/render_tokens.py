"""Token maps of the gates: a section of the report, and a page with all layers."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from bara_pyro.atomic import write_text
from bara_pyro.diagnostics.gates.tokens import TextUse, TokenUse
from bara_pyro.diagnostics.parts import Shown, shown_section
from bara_pyro.errors import DataError
from bara_pyro.report import ColourScale, Link, Paragraph, Shaded, Word
from bara_pyro.report.blocks import Block
from bara_pyro.report.html import document, source, template_environment
from bara_pyro.report.style import COLOURS, EQUAL, channels, letters, shade

PAGE, PACKAGE = "tokens.html", "bara_pyro.diagnostics.page"
CLOSE = 5.0  # percent: a smaller range over tokens counts as no difference


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

    Without texts this raises a `DataError`.
    """
    if not found.texts:
        raise DataError("There are no token maps to draw: give at least one text.")
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

"""The section on which tokens use the gates."""

import math

from bara_pyro.diagnostics.gates.tokens import TextUse, TokenUse
from bara_pyro.diagnostics.page.shades import COLOURS, letters, shade
from bara_pyro.diagnostics.page.shown import Shown, shown
from bara_pyro.report import Link, Paragraph, Scale, Shaded, Word
from bara_pyro.report.blocks import Block

PAGE = "tokens.html"
CLOSE = 5.0  # percent: tokens that lie so near to one another hardly differ


def render_tokens(found: TokenUse) -> Shown:
    """Show each text with its tokens shaded, mean over modules."""
    values = [value for text in found.texts for value in text.mean if not math.isnan(value)]
    low, high = min(values), max(values)
    fewest, most = (_where(found, value) for value in (low, high))
    words = "Which word is read hardly matters to the gates"
    if high - low > CLOSE:
        words = "The gates tell words apart"
    plain = (
        f"{words}: {fewest} leaves the fewest of them closed ({low:.0f} %), {most} the most ({high:.0f} %)."
    )
    technical = [
        f"Over the tokens of {len(found.texts)} texts {low:.0f} to {high:.0f} % of the gates Φθ are below "
        f"{found.tau:g}, expected over {max(found.draws, 1)} draws."
    ]
    label = "share of gates that are nearly off; light: few gates in use"
    blocks: list[Block] = [
        Paragraph(["Layer by layer, with the value of each token: ", Link("token maps", PAGE), "."]),
        Scale(COLOURS, f"{low:.1f} %", f"{high:.1f} %", label),
        *(_shaded(text, low, high) for text in found.texts),
    ]
    return shown("Gates by token", plain, technical, blocks)


def _where(found: TokenUse, value: float) -> str:
    return next(
        repr(token.strip())
        for text in found.texts
        for token, own in zip(text.tokens, text.mean, strict=True)
        if own == value
    )


def _shaded(text: TextUse, low: float, high: float) -> Shaded:
    words = []
    for token, value in zip(text.tokens, text.mean, strict=True):
        ground = shade((value - low) / (high - low) if high > low else 0.5)
        words.append(Word(as_read(token), ground, letters(ground), f"{value:.1f} % nearly off"))
    return Shaded(text.title, words)


def as_read(token: str) -> str:
    """Return a token with what cannot be seen made visible."""
    return token.replace("\n", "⏎").strip() or "␣"

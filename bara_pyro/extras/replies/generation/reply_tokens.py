"""The tokens of a reply as they are read: what cannot be seen is marked, and where words are apart."""

from collections.abc import Sequence
from dataclasses import dataclass

# A token may be half a character, which no text has: so far ahead the next one is looked for.
AHEAD = 12
# Of no width, or turning round how what follows is read.
UNSEEN = (0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2060, 0x206A), 0xFEFF)
# Control characters have pictures of their own; a line break stays one, behind its sign.
PICTURES = {
    **{code: f"⟨U+{code:04X}⟩" for code in UNSEEN},
    **{code: chr(0x2400 + code) for code in range(32)},
    **{9: "⇥", 10: "⏎\n", 127: "␡"},
}


@dataclass(frozen=True)
class Marked:
    """A token as it is read.

    Attributes:
        text: with signs for what cannot be seen.
        gap: whether a space stands before it that is no part of it.
    """

    text: str
    gap: bool


def mark_tokens(texts: Sequence[str], reply: str) -> list[Marked]:
    """Return tokens as they are read.

    Some tokenizers decode a single token without the space before it: it is where the reply has one. What
    ends a reply and is no part of its text stands apart.

    Args:
        texts: the tokens, decoded one by one.
        reply: the tokens, decoded together.
    """
    found, end = [], 0
    for text in texts:
        at = reply.find(text, end, end + len(text) + AHEAD) if text else -1
        apart = reply[at - 1] == " " if at > end else at < 0 and end == len(reply) > 0
        found.append(Marked(visible(text), apart))
        end = at + len(text) if at >= 0 else end
    return found


def visible(text: str) -> str:
    """Return a token with signs for line breaks, control characters and spaces that stand alone."""
    if not text.strip(" "):
        return "␣" * len(text) or "∅"
    return text.translate(PICTURES)

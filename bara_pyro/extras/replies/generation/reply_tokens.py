"""Show the tokens of a reply: mark invisible characters and restore spaces between tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

# A token may be part of a character, which does not occur in the text, so search this far for the next one.
AHEAD = 12
# Characters of zero width, and those that change the direction of reading.
UNSEEN = (0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2060, 0x206A), 0xFEFF)
# Signs for control characters; a line break also stays a line break.
PICTURES = {
    **{code: f"⟨U+{code:04X}⟩" for code in UNSEEN},
    **{code: chr(0x2400 + code) for code in range(32)},
    **{9: "⇥", 10: "⏎\n", 127: "␡"},
}


@dataclass(frozen=True)
class Marked:
    """A token to show.

    Attributes:
        text: its text, with signs for invisible characters.
        gap: whether a space precedes it that is not part of it.
    """

    text: str
    gap: bool


def mark_tokens(texts: Sequence[str], reply: str) -> list[Marked]:
    """Return tokens to show: `texts` decoded one by one, which are `reply` decoded together.

    Some tokenizers decode a single token without the space before it, so spaces are taken from the reply. A
    space also precedes tokens that end a reply and are not part of its text.
    """
    marked, end = [], 0
    for text in texts:
        at = reply.find(text, end, end + len(text) + AHEAD) if text else -1
        apart = reply[at - 1] == " " if at > end else at < 0 and end == len(reply) > 0
        marked.append(Marked(visible(text), apart))
        end = at + len(text) if at >= 0 else end
    return marked


def visible(text: str) -> str:
    """Return a token with signs for line breaks, control characters, and spaces without other characters."""
    if not text.strip(" "):
        return "␣" * len(text) or "∅"
    return text.translate(PICTURES)

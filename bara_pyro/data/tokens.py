"""Tokenise texts: the whole text, or only its first tokens without reading the rest."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bara_pyro.data.unicode import check_unicode

Tokenizer = Any  # a Hugging Face tokenizer; transformers ships no types for it

FIRST = 16
"""Characters read at first per token wanted; text has about four per token."""
MOST = 256
"""Most characters read per token wanted, for blanks or one endless word."""
MARGIN = 16
"""Number of tokens at the end of a piece that may differ from those of the whole text."""


@dataclass(frozen=True)
class Leading:
    """The first tokens of a text.

    Attributes:
        tokens: the tokens.
        whole: whether these are all tokens of the text.
    """

    tokens: list[int]
    whole: bool


def leading(tokenizer: Tokenizer, texts: Sequence[str], count: int) -> list[Leading]:
    """Return the first tokens of texts, without special tokens.

    Args:
        tokenizer: a Hugging Face tokenizer.
        texts: texts of any length.
        count: number of tokens wanted of each. A text that is not `whole` gets exactly this many, or fewer if
            it has more than `MOST` characters per token.

    Raises:
        DataError: the part that is read is not valid Unicode.
    """
    by_text: dict[int, Leading] = {}
    limit = max(count, 0) + MARGIN
    most, size = MOST * limit, FIRST * limit
    left: Iterable[int] = range(len(texts))
    while left:
        pieces = {i: texts[i][:size] for i in left}
        for (i, piece), tokens in zip(pieces.items(), ids_of(tokenizer, [*pieces.values()]), strict=True):
            complete = len(piece) == len(texts[i])
            if complete or len(tokens) >= limit or size >= most:
                by_text[i] = Leading(tokens if complete else tokens[: max(count, 0)], complete)
        left = [i for i in left if i not in by_text]
        size = min(4 * size, most)
    return [by_text[i] for i in range(len(texts))]


def ids_of(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Tokenise texts without special tokens and without warnings about their length.

    Raises:
        DataError: a text is not valid Unicode.
    """
    if not texts:
        return []
    check_unicode(texts)
    return list(tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"])


def continuation(tokenizer: Tokenizer, before: str, text: str) -> list[int]:
    """Return the tokens that `text` adds after `before`, or those of `text` by itself if the two merge."""
    start, both = ids_of(tokenizer, [before, before + text])
    return both[len(start) :] if both[: len(start)] == start else ids_of(tokenizer, [text])[0]


def front_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the special tokens that the tokenizer puts in front of a text."""
    plain, full = ids_of(tokenizer, ["a"])[0], list(tokenizer("a")["input_ids"])
    starts = (start for start in range(len(full)) if plain and full[start : start + len(plain)] == plain)
    return full[: next(starts, 0)]


def pad_id(tokenizer: Tokenizer) -> int:
    """Return the token to pad rows with: the padding token, else the end token."""
    known = (token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None)
    return int(next(known, 0))


def unknown_share(rows: Sequence[Sequence[int]], tokenizer: Tokenizer) -> float:
    """Return the percentage of unknown tokens; 0 for tokenizers without an unknown token."""
    total = sum(map(len, rows))
    return 100 * sum(row.count(tokenizer.unk_token_id) for row in rows) / max(total, 1)

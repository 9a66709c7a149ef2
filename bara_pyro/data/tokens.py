"""Tokenise texts: the whole text, only its first tokens without reading the rest, or an answer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bara_pyro.data.types import ANSWER, LETTERS, ChatFrame
from bara_pyro.errors import DataError
from bara_pyro.types import Fields

NEAR = 20  # characters shown on either side of an invalid one


def check_unicode(texts: Iterable[str], row: Fields | None = None, where: str = "") -> None:
    """Raise a `DataError` for a text with half of a surrogate pair.

    With their row the error names the column, in the row called `where`.
    """
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = text[error.start]
            subject = f"The text {text[max(0, error.start - NEAR) : error.start + NEAR]!r}"
            if row is not None:
                column = _column(row, half)
                subject = f"The text in {column!r} of {where}" if where else f"its text in {column!r}"
            raise DataError(
                f"{subject} is not valid Unicode ({half!r} is half a character): write the whole character, "
                "or leave it out."
            ) from error


def _column(row: Fields, half: str) -> str:
    """Return the column that contains half a character, in a text, a list or an object."""
    escaped = ascii(half)[1:-1]
    return next((str(name) for name, value in row.items() if escaped in ascii(value)), "id")


Tokenizer = Any  # a Hugging Face tokenizer; transformers ships no types for it

FIRST = 16
"""Characters read at first per token wanted; text has about four per token."""
MOST = 256
"""Most characters read per token wanted, for blanks or one endless word."""
MARGIN = 16
"""Number of tokens at the end of a piece that may differ from those of the whole text."""


@dataclass(frozen=True)
class Leading:
    """The first tokens of a text, and whether these are all tokens of it."""

    tokens: list[int]
    whole: bool


def leading(tokenizer: Tokenizer, texts: Sequence[str], count: int) -> list[Leading]:
    """Return the first tokens of texts of any length, without special tokens.

    A text that is not `whole` gets exactly `count` tokens, or fewer if it has more than `MOST` characters per
    token. See `check_unicode` for the part that is read.
    """
    by_text: dict[int, Leading] = {}
    limit = max(count, 0) + MARGIN
    for size in (FIRST * limit, MOST * limit):
        pieces = {i: text[:size] for i, text in enumerate(texts) if i not in by_text}
        for (i, piece), tokens in zip(pieces.items(), ids_of(tokenizer, [*pieces.values()]), strict=True):
            complete = len(piece) == len(texts[i])
            if complete or len(tokens) >= limit or size == MOST * limit:
                by_text[i] = Leading(tokens if complete else tokens[: max(count, 0)], complete)
    return [by_text[i] for i in range(len(texts))]


def ids_of(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Tokenise texts without special tokens and without warnings about their length; see `check_unicode`."""
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


def answer_token_ids(tokenizer: Tokenizer, labels: Sequence[str], chat: ChatFrame | None = None) -> Tensor:
    """Return the token of each label as it follows the prompt without a space.

    A label's token is what the tokenizer adds when the label is appended to a line break; if that is not one
    token, it is the encoding of the label by itself. Appending the label to the prompt could give another
    token, because some tokenizers merge across the boundary ("Answer:A" may contain the token ":A"). So could
    the label by itself, because SentencePiece puts a space before the first word of a text (["_", "A"] or
    ["_A"]). The result is the token of "A" for GPT-2 or Qwen tokenizers and of "A" inside a word for Llama,
    as in the published protocol (class tokens without a leading space).

    Args:
        tokenizer: a Hugging Face tokenizer.
        labels: C distinct labels, in class order.
        chat: the text around each question, if questions go through a chat template; a label's token is then
            the one that the template continues with.

    Returns:
        Token ids, long, `C`.

    Raises:
        DataError: a label is several tokens or an unknown token, or two labels are the same token.

    Examples:
        >>> import bara_pyro as bp
        >>> tokenizer = bp.load_backbone("microworld").tokenizer
        >>> tokens = bp.answer_token_ids(tokenizer, ["A", "B"])
        >>> tokenizer.convert_ids_to_tokens(tokens.tolist())
        ['A', 'B']
    """
    label_of: dict[int, str] = {}
    for label in labels:
        token = _single(tokenizer, label, label_tokens(tokenizer, label, chat))
        if token in label_of:
            raise DataError(
                f"The labels {label_of[token]!r} and {label!r} are the same token ({token}): rename one, or "
                "use labels='letters' (--labels letters)."
            )
        label_of[token] = label
    return torch.tensor(list(label_of), dtype=torch.long)


def label_tokens(tokenizer: Tokenizer, label: str, chat: ChatFrame | None = None) -> list[int]:
    """Return the tokens of a label of any length as it follows the prompt; see `answer_token_ids`."""
    if chat is not None:
        return continuation(tokenizer, chat.after, chat.space + label)
    readings = [continuation(tokenizer, "\n", label), ids_of(tokenizer, [label])[0]]
    return next((reading for reading in readings if len(reading) == 1), readings[0])


def _single(tokenizer: Tokenizer, label: str, tokens: list[int]) -> int:
    way_out = "use labels='letters' (--labels letters) to answer with a letter instead."
    if label in LETTERS and (len(tokens) != 1 or tokens[0] == tokenizer.unk_token_id):
        raise DataError(
            f"The tokenizer has no single token for the letter {label!r}: use another model, or a task with "
            "fewer options."
        )
    if len(tokens) != 1:
        pieces = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(tokens)))
        raise DataError(f"The label {label!r} is {len(tokens)} tokens ({pieces}), but must be one: {way_out}")
    if tokens[0] == tokenizer.unk_token_id:
        raise DataError(f"The label {label!r} is not in the tokenizer's vocabulary: {way_out}")
    return tokens[0]


def text_tokens(tokenizer: Tokenizer, text: str, chat: ChatFrame | None = None) -> list[int]:
    """Return the tokens of an answer's whole text as it follows a prompt and a space, or a chat's prompt.

    If there are none, or one is unknown, this raises a `DataError`.
    """
    tokens = (
        continuation(tokenizer, ANSWER, f" {text}")
        if chat is None
        else continuation(tokenizer, chat.after, chat.space + text)
    )
    if not tokens or tokenizer.unk_token_id in tokens:
        raise DataError(
            f"The tokenizer cannot read the answer {text!r}: choose another language model (--model), use "
            "letters (--labels letters), or rename the answers."
        )
    return tokens

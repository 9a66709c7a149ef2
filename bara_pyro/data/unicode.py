"""Texts that are not valid Unicode: JSON may hold half of a surrogate pair, and no tokenizer reads it."""

from collections.abc import Iterable

from bara_pyro.errors import DataError
from bara_pyro.types import Fields

NEAR = 20  # characters that are shown on either side of what is wrong


def check_unicode(texts: Iterable[str], row: Fields | None = None, where: str = "") -> None:
    """Refuse a text that holds half a character.

    Args:
        texts: what is to be read.
        row: that they come from, whose column is then named.
        where: that row is; without it the sentence is one to be put behind its place.

    Raises:
        DataError: there is such a text.
    """
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = text[error.start]
            told = f"The text {text[max(0, error.start - NEAR) : error.start + NEAR]!r}"
            if row is not None:
                column = _column(row, half)
                told = f"The text in {column!r} of {where}" if where else f"its text in {column!r}"
            raise DataError(
                f"{told} is not valid Unicode ({half!r} is half a character): write the whole character, or "
                "leave it out."
            ) from error


def _column(row: Fields, half: str) -> str:
    """Return the column that holds half a character, in a text or in a list or object of texts."""
    escaped = ascii(half)[1:-1]
    return next((str(name) for name, value in row.items() if escaped in ascii(value)), "id")

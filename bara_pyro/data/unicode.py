"""Refuse texts with half of a surrogate pair, which JSON may contain and no tokenizer can read."""

from collections.abc import Iterable

from bara_pyro.errors import DataError
from bara_pyro.types import Fields

NEAR = 20  # characters shown on either side of an invalid one


def check_unicode(texts: Iterable[str], row: Fields | None = None, where: str = "") -> None:
    """Refuse texts with half of a surrogate pair.

    Args:
        texts: the texts to check.
        row: their row; the error then names the column.
        where: name of the row in the error; if empty, the caller adds it.

    Raises:
        DataError: a text is not valid Unicode.
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

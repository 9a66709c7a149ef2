"""Find the columns to read: those that the user names, else those with usual names."""

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from bara_pyro.columns import KINDS, QUESTIONS, ColumnNames, option_of
from bara_pyro.data.cells import as_read, label_text
from bara_pyro.data.conversations import REPLIES
from bara_pyro.data.types import Columns
from bara_pyro.errors import DataError
from bara_pyro.types import Fields


def find_columns(
    there: Sequence[str], given: ColumnNames, place: str, *, answers: bool = True, last_words: bool = True
) -> Columns:
    """Return the columns to read: those that the user names, else those with a usual name.

    Args:
        there: the columns of the rows.
        given: the columns that the user names.
        place: name of the rows in errors.
        answers: whether a column of answers is required.
        last_words: whether to accept, failing that, the only column whose name ends in a usual name.

    Raises:
        DataError: a named column is missing, or no column has a usual name; the error lists the columns.
    """
    listed = ", ".join(map(repr, there))
    chosen: dict[str, Any] = {**given.named}
    for kind, name in chosen.items():
        if name not in there:
            raise DataError(
                f"{place} has no column {name!r}, named by {option_of(kind)}: its columns are {listed}."
            )
    for kind in KINDS:
        # A second text is read as context only of a question; beside a text to classify it may be anything.
        applies = kind != "context" or is_question(chosen.get("text", ""))
        if applies and kind not in chosen and (name := _usual(kind, there, tuple(chosen.values()), place)):
            chosen[kind] = name
    for kind in ("text", "choices", "context"):
        if "label" in chosen and chosen.get(kind) == chosen["label"]:
            raise DataError(
                f"{place}: the column {chosen['label']!r} is read as the answer and as {KINDS[kind].holds}: "
                f"name another column with {option_of(kind)}."
            )
    lacking = [kind for kind in ("text", "label") if kind not in chosen and (kind == "text" or answers)]
    for kind in [*lacking]:
        if last_words and (name := _named_for(kind, there, tuple(chosen.values()), place)):
            chosen[kind] = name
            lacking.remove(kind)
    if lacking:
        kinds = " and no column for ".join(KINDS[kind].holds for kind in lacking)
        options = " and ".join(option_of(kind) for kind in lacking)
        replies = ""
        if "label" in lacking and not {"messages", *REPLIES}.isdisjoint(there):  # the rows hold replies
            replies = ", or learn replies with likelihood='completion' (--likelihood completion)"
        raise DataError(
            f"{place} has no column for {kinds} among {listed}{_read_already(chosen)}: name it with "
            f"{options}{replies}."
        )
    return Columns(**chosen)


def _read_already(columns: dict[str, str]) -> str:
    """Return a remark on columns whose name is also usual for another kind."""
    remarks = [
        f"{name!r} is read as {KINDS[kind].holds}"
        for kind, name in columns.items()
        if any(_usual(other, [name], ()) for other in KINDS if other != kind)
    ]
    return f" ({', '.join(remarks)})" if remarks else ""


def is_question(column: str) -> bool:
    """Return whether a column holds questions, which must not be cut, by its name."""
    return _bare(column) in {_bare(name) for name in QUESTIONS}


def columns_note(columns: Columns) -> str:
    """Return the note that lists the columns that are read."""
    named = [f"{kind} {name!r}" for kind, name in asdict(columns).items() if isinstance(name, str)]
    return "columns read: " + ", ".join(named)


def _usual(kind: str, there: Sequence[str], taken: Sequence[str], place: str = "") -> str | None:
    """Return the column with the first usual name; refuse two spellings of the same name."""
    for usual in KINDS[kind].usual:
        matches = [name for name in there if name not in taken and _bare(name) == _bare(usual)]
        if len(matches) > 1:
            raise DataError(
                f"{place} has two columns that may hold {KINDS[kind].holds}, {matches[0]!r} and "
                f"{matches[1]!r}: name one with {option_of(kind)}."
            )
        if matches:
            return matches[0]
    return None


def _named_for(kind: str, there: Sequence[str], taken: Sequence[str], place: str) -> str | None:
    """Return the only column whose last word is a usual name, like "Customer Message"; refuse several."""
    usual = {_bare(name) for name in KINDS[kind].usual}
    matches = [
        name for name in there if name not in taken and _words(name)[-1:] and _words(name)[-1] in usual
    ]
    if len(matches) > 1:
        listed, option = ", ".join(map(repr, matches)), f"--{kind}-column"
        raise DataError(
            f"{place} has {len(matches)} columns that may hold {KINDS[kind].holds}, {listed}: name one with "
            f'{option_of(kind)}, for example {option} "{matches[0]}".'
        )
    return matches[0] if matches else None


def id_column(parts: Sequence[Sequence[Fields]], taken: Collection[str | None]) -> str | None:
    """Return a column of identifiers such as "Ticket ID" or "ticket_id", if no column is called "id".

    Args:
        parts: the rows of each table.
        taken: columns that are read as something else.

    Returns:
        The first column whose cells are filled and unique over all tables, or None.
    """
    rows = [row for part in parts for row in part]
    there = [str(name) for name in rows[0]] if rows else []
    if any(_bare(name) == "id" for row in rows for name in row):
        return None
    for name in there:
        if name in taken or _words(name)[-1:] != ["id"]:
            continue
        cells = [row.get(name) for row in rows]
        known = {label_text(cell) for cell in cells if isinstance(cell, str | int | float)} - {""}
        if len(known) == len(rows):
            return name
    return None


def _words(name: str) -> list[str]:
    """Return the words of a column's name, in lower case."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", as_read(name))
    return re.split(r"[\W_]+", apart.strip(" _").lower())


@lru_cache(2**14)  # called for every kind of column
def _bare(name: str) -> str:
    return re.sub(r"[\s_-]", "", as_read(name)).lower()

"""Read a user's own rows: find the columns, and turn a row into a question with its answer.

With options, the answer is a letter, an option's text or its index from 0, or the option's label if the
choices have ARC's format. Without options, it is one of a fixed set of labels.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from bara_pyro.columns import KINDS, QUESTIONS, ColumnNames, option_of
from bara_pyro.data.conversations import REPLIES
from bara_pyro.data.labels import lettered, with_cue
from bara_pyro.data.reading import unique_keys
from bara_pyro.data.schemas import Row, named_options
from bara_pyro.data.tables import label_text, missing, text_field
from bara_pyro.data.types import ANSWER, LETTERS, Columns, Example
from bara_pyro.errors import DataError
from bara_pyro.types import Fields

# Characters that cannot be seen: soft hyphens, zero-width spaces, marks of direction and byte order. Joiners,
# selectors and tags do not belong here, because emoji and whole scripts need them.
INVISIBLE = re.compile(r"[\x00-\x08\x7f\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]")


def as_read(text: str) -> str:
    """Return a text without invisible characters, so that texts that look the same are equal."""
    visible = INVISIBLE.sub("", unicodedata.normalize("NFC", text))
    return "".join(" " if unicodedata.category(sign) == "Zs" else sign for sign in visible).strip()


def _words(name: str) -> list[str]:
    """Return the words of a column's name, in lower case."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", as_read(name))
    return re.split(r"[\W_]+", apart.strip(" _").lower())


@lru_cache(2**14)  # called for every kind of column
def _bare(name: str) -> str:
    return re.sub(r"[\s_-]", "", as_read(name)).lower()


def _last_word(name: str) -> str:
    return _words(name)[-1]


def find_columns(
    there: Sequence[str], given: ColumnNames, place: str, *, answers: bool = True, last_words: bool = True
) -> Columns:
    """Return the columns to read: those that the user names, else those with a usual name.

    Failing that, with `last_words` it is the only column whose name ends in a usual name. A column of answers
    is required only if `answers`.

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
        # With another text the predictions look wrong; with another answer they look right.
        only = answers and kind == "label"
        if applies and kind not in chosen and (name := _usual(kind, there, chosen, place, only=only)):
            chosen[kind] = name
    for kind in ("text", "choices", "context"):
        if "label" in chosen and chosen.get(kind) == chosen["label"]:
            raise DataError(
                f"{place}: the column {chosen['label']!r} is read as the answer and as {KINDS[kind].holds}: "
                f"name another column with {option_of(kind)}."
            )
    required = ("text", "label") if answers else ("text",)
    for kind in required if last_words else ():
        if kind not in chosen and (name := _usual(kind, there, chosen, place, of=_last_word, only=True)):
            chosen[kind] = name
    if lacking := [kind for kind in required if kind not in chosen]:
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
        if any(_usual(other, [name], {}) for other in KINDS if other != kind)
    ]
    return f" ({', '.join(remarks)})" if remarks else ""


def is_question(column: str) -> bool:
    """Return whether a column holds questions, which must not be cut, by its name."""
    return _bare(column) in {_bare(name) for name in QUESTIONS}


def columns_note(columns: Columns) -> str:
    """Return the note that lists the columns that are read."""
    named = [f"{kind} {name!r}" for kind, name in asdict(columns).items() if isinstance(name, str)]
    return "columns read: " + ", ".join(named)


def _usual(
    kind: str,
    there: Sequence[str],
    chosen: Mapping[str, str],
    place: str = "",
    *,
    of: Callable[[str], str] = _bare,
    only: bool = False,
) -> str | None:
    """Return the column, not yet chosen, with the first usual name for a kind, or None.

    `of` gives the part of a column's name to compare. Two spellings of a name raise a `DataError`, and if
    `only` so do any two usual names.
    """
    names = KINDS[kind].usual
    for usual in (names,) if only else ((name,) for name in names):
        known = {_bare(name) for name in usual}
        matches = [name for name in there if name not in chosen.values() and of(name) in known]
        if len(matches) > 1:
            listed = ", ".join(map(repr, matches))
            raise DataError(
                f"{place} has {len(matches)} columns that may hold {KINDS[kind].holds}, {listed}: name one "
                f'with {option_of(kind)}, for example --{kind}-column "{matches[0]}".'
            )
        if matches:
            return matches[0]
    return None


def id_column(parts: Sequence[Sequence[Fields]], taken: Collection[str | None]) -> str | None:
    """Return a column of identifiers such as "Ticket ID" or "ticket_id", if no column is called "id".

    It is the first column, not `taken` as something else, whose cells are filled and unique over all tables.
    """
    rows = [row for part in parts for row in part]
    there = [str(name) for name in rows[0]] if rows else []
    if any(_bare(name) == "id" for row in rows for name in row):
        return None
    for name in there:
        if name in taken or _last_word(name) != "id":
            continue
        cells = [row.get(name) for row in rows]
        known = {label_text(cell) for cell in cells if isinstance(cell, str | int | float)} - {""}
        if len(known) == len(rows):
            return name
    return None


PRINTED = re.compile(r"\s*[\[({]+\s*['\"]")
"""Matches the beginning of a printed list of texts."""


def own_example(row: Row, row_id: str, columns: Columns, names: Sequence[str]) -> Example:
    """Turn a user's row into an `Example`; its label is -1 if it has no answer.

    `names` are the classes; they are empty if the row lists its options.
    """
    text = own_text(row, columns.text)
    context = own_context(row, columns)
    group = None if columns.cluster is None else row.get(columns.cluster)
    cluster = "" if missing(group) else label_text(group, "its cluster")
    answer = None if columns.label is None else row.get(columns.label)
    if not names:
        key = columns.choices or "choices"
        options, called = listed_options(row.get(key), key)
        label = -1 if missing(answer) else _choice(answer, options, called)
        texts = tuple(options)
        shown = called or (texts if len(set(texts)) == len(texts) else LETTERS[: len(texts)])
        return Example(
            row_id, lettered(text, texts), label, context, options=shown, texts=texts, cluster=cluster
        )
    label = -1 if missing(answer) else _label(answer, names, columns.indices)
    if context or is_question(columns.text):
        return Example(row_id, with_cue(text), label, context, cluster=cluster)
    # The text is put into the context, which may be cut; the prompt is the same.
    return Example(row_id, ANSWER, label, text, cluster=cluster)


def listed_options(choices: object, key: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the options as texts, and the labels that the row gives them.

    A cell of text, as in a CSV, holds JSON or options separated by "|"; see `schemas.named_options`.
    """
    if isinstance(choices, str):
        choices = _of_text(choices)
    if not isinstance(choices, list | dict):
        raise DataError(f"its {key!r} are not a list: {choices!r} (in a CSV, separate options with '|').")
    if isinstance(choices, list) and None in choices:
        raise DataError(f"its {key!r} have an empty option: {choices!r}.")
    return named_options(choices, key)


def _of_text(cell: str) -> object:
    """Return the options that a cell lists, or the cell itself if it is not a list.

    Unreadable JSON, or a list as Python prints it that contains "|", raises a `DataError`.
    """
    if cell.strip()[:1] in ("[", "{"):
        try:
            return json.loads(cell, object_pairs_hook=unique_keys)
        except DataError:
            raise
        except (ValueError, RecursionError):  # an option may begin with a bracket
            pass
    first, bar, _ = cell.partition("|")
    if bar and PRINTED.match(first) and sum(map(first.count, "[({")) > sum(map(first.count, "])}")):
        raise DataError(f"its options {cell!r:.60} are not valid JSON: write the list with json.dumps.")
    return cell.split("|") if bar else cell


def own_text(row: Row, key: str) -> str:
    """Return the text of a cell, which may be a number; a `DataError` if it is empty."""
    value = row.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return text_field(row if not number else {key: label_text(value)}, key)


def own_context(row: Row, columns: Columns) -> str:
    """Return the row's context, or an empty text if it has none."""
    key = columns.context
    return "" if key is None or missing(row.get(key)) else own_text(row, key)


def _choice(answer: object, options: Sequence[str], called: Sequence[str] = ()) -> int:
    """Return the option that an answer names by label, letter, text or index; refuse an ambiguous answer."""
    text = label_text(answer, "its answer")
    if text in called:
        return list(called).index(text)
    is_index = isinstance(answer, int) and not isinstance(answer, bool)
    letters = LETTERS[: len(options)]
    meant = {place for place, names in enumerate(zip(letters, options, strict=True)) if text in names}
    if text.isdecimal() and (is_index or not called):
        meant |= {int(text)} & set(range(len(options)))
    if (times := list(options).count(text)) > 1:
        raise DataError(f"the option {text!r} is listed {times} times: list each option once.")
    if len(meant) > 1:
        give = "letter" if text.isdecimal() else "index from 0"
        raise DataError(f"its answer {answer!r} fits several options: give the option's {give}.")
    if not meant:  # compare without invisible characters
        names = zip(letters, options, called or letters, strict=True)
        meant = {place for place, known in enumerate(names) if as_read(text) in map(as_read, known)}
    if len(meant) != 1:
        last = LETTERS[len(options) - 1]
        raise DataError(
            f"its answer {answer!r} is not an option: give a letter from A to {last}, an option's text, or "
            f"an index from 0 to {len(options) - 1}."
        )
    return meant.pop()


def _label(answer: object, names: Sequence[str], indices: bool) -> int:
    """Return the class that an answer gives by name, or by index if `indices`."""
    text = label_text(answer, "its answer")
    if text in names:
        return list(names).index(text)
    if indices and isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(names):
        return answer
    same = [place for place, name in enumerate(names) if as_compared(name) == as_compared(text)]
    if len(same) == 1:
        return same[0]
    raise DataError(
        f"its answer {answer!r} is not one of the labels {', '.join(names)}: correct it, or leave it out."
    )


def as_compared(text: str) -> float | str:
    """Return a label for comparison: numbers by value (pandas writes 1 as "1.0"), texts as they look."""
    text = as_read(text)
    return float(text) if re.fullmatch(r"[+-]?\d+(\.\d+)?", text) else text

"""Read a user's own rows: a text and its label, or a question with its options.

With options, the answer is a letter, an option's text or its index from 0, or the option's label if the
choices have ARC's format. Without options, it is one of a fixed set of labels.
"""

import json
import re
from collections.abc import Sequence

from bara_pyro.data.cells import as_read, label_text, shown, unique_keys
from bara_pyro.data.columns import is_question
from bara_pyro.data.schemas import ANSWER, Row, lettered, missing, named_options, text_field
from bara_pyro.data.types import LETTERS, Columns, Example
from bara_pyro.errors import DataError

PRINTED = re.compile(r"\s*[\[({]+\s*['\"]")
"""Matches the beginning of a printed list of texts."""


def own_example(row: Row, row_id: str, columns: Columns, names: Sequence[str]) -> Example:
    """Turn a user's row into an `Example`; its label is -1 if it has no answer.

    Args:
        row: the cells by column.
        row_id: its identifier.
        columns: the columns to read.
        names: the classes; empty if the row lists its options.
    """
    text = own_text(row, columns.text)
    context = own_context(row, columns)
    cluster = "" if columns.cluster is None else _cluster(row.get(columns.cluster))
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


def with_cue(question: str) -> str:
    """Return the question followed by "Answer:", unless it ends so already."""
    return question if re.search(r"Answer ?:$", question) else f"{question}\n{ANSWER}"


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

    Raises:
        DataError: the cell is unreadable JSON, or a list as Python prints it that contains "|".
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
        raise DataError(f"its options {shown(cell)} are not valid JSON: write the list with json.dumps.")
    return cell.split("|") if bar else cell


def _cluster(value: object) -> str:
    """Return a row's cluster, or an empty text if it has none."""
    return "" if missing(value) else label_text(value, "its cluster")


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
    same = [place for place, name in enumerate(names) if _meant(name) == _meant(text)]
    if len(same) == 1:
        return same[0]
    raise DataError(f"its answer {answer!r} is not one of the labels {', '.join(names)}.")


def _meant(text: str) -> float | str:
    """Return a label for comparison: numbers by value (pandas writes 1 as "1.0"), texts as they look."""
    text = as_read(text)
    return float(text) if re.fullmatch(r"[+-]?\d+(\.\d+)?", text) else text

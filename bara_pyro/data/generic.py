"""The schema of rows of one's own: a text and its label, or a question with its options.

With choices, the answer is a letter, an option's text or its index from 0 (or the option's own label, where
the choices come as ARC's are); without, it is one of a closed set of labels.
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
"""How a list of texts begins."""


def own_example(row: Row, row_id: str, columns: Columns, names: Sequence[str]) -> Example:
    """Turn a row of one's own into an `Example`; its label is -1 where it has no answer.

    `names` are the classes, empty where the row lists its options.
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
    # The same prompt, of which the text may be cut.
    return Example(row_id, ANSWER, label, text, cluster=cluster)


def with_cue(question: str) -> str:
    """Return the question with "Answer:" behind it, unless it ends in that already."""
    return question if re.search(r"Answer ?:$", question) else f"{question}\n{ANSWER}"


def listed_options(choices: object, key: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the options as texts, and what the row calls them.

    A text, as a cell of CSV is, holds JSON or options with "|" between them; see `schemas.named_options`.
    """
    if isinstance(choices, str):
        choices = _of_text(choices)
    if not isinstance(choices, list | dict):
        raise DataError(f"its {key!r} are no list: {choices!r} (in CSV, separate them with '|').")
    if isinstance(choices, list) and None in choices:
        raise DataError(f"its {key!r} have an option without a text: {choices!r}.")
    return named_options(choices, key)


def _of_text(cell: str) -> object:
    """Return what a cell lists; as it is where it lists nothing.

    Raises:
        DataError: it is JSON that cannot be read, or a list as Python prints it, with "|" within.
    """
    if cell.strip()[:1] in ("[", "{"):
        try:
            return json.loads(cell, object_pairs_hook=unique_keys)
        except DataError:
            raise
        except (ValueError, RecursionError):  # options may begin like that
            pass
    first, bar, _ = cell.partition("|")
    if bar and PRINTED.match(first) and sum(map(first.count, "[({")) > sum(map(first.count, "])}")):
        raise DataError(f"its options {shown(cell)} are a list that is no JSON: write it by json.dumps.")
    return cell.split("|") if bar else cell


def _cluster(value: object) -> str:
    """Return what a row has in common with others; an empty text where it stands for itself."""
    return "" if missing(value) else label_text(value, "its cluster")


def own_text(row: Row, key: str) -> str:
    """Return the text of a cell, which may be a number; a `DataError` where there is none."""
    value = row.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return text_field(row if not number else {key: label_text(value)}, key)


def own_context(row: Row, columns: Columns) -> str:
    """Return what stands before the question; an empty text where the row has nothing there."""
    key = columns.context
    return "" if key is None or missing(row.get(key)) else own_text(row, key)


def _choice(answer: object, options: Sequence[str], called: Sequence[str] = ()) -> int:
    """Return the option meant by its label, a letter, its text or its index; refuse a double meaning."""
    said = label_text(answer, "its answer")
    if said in called:
        return list(called).index(said)
    whole = isinstance(answer, int) and not isinstance(answer, bool)
    letters = LETTERS[: len(options)]
    meant = {place for place, names in enumerate(zip(letters, options, strict=True)) if said in names}
    if said.isdecimal() and (whole or not called):
        meant |= {int(said)} & set(range(len(options)))
    if (times := list(options).count(said)) > 1:
        raise DataError(f"the option {said!r} stands there {times} times: give each option once.")
    if len(meant) > 1:
        give = "letter" if said.isdecimal() else "index from 0"
        raise DataError(f"its answer {answer!r} fits more than one option: give the option's {give}.")
    if not meant:  # but for signs that cannot be seen
        names = zip(letters, options, called or letters, strict=True)
        meant = {place for place, known in enumerate(names) if as_read(said) in map(as_read, known)}
    if len(meant) != 1:
        last = LETTERS[len(options) - 1]
        raise DataError(
            f"its answer {answer!r} is no letter from A to {last}, no option's text and no index from 0 "
            f"to {len(options) - 1}."
        )
    return meant.pop()


def _label(answer: object, names: Sequence[str], indices: bool) -> int:
    """Return the class of an answer: its name, or its index where that is meant."""
    said = label_text(answer, "its answer")
    if said in names:
        return list(names).index(said)
    if indices and isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(names):
        return answer
    same = [place for place, name in enumerate(names) if _meant(name) == _meant(said)]
    if len(same) == 1:
        return same[0]
    raise DataError(f"its answer {answer!r} is none of the labels {', '.join(names)}.")


def _meant(text: str) -> float | str:
    """Return what a label says: a number as one, as pandas writes 1 as "1.0"; else what can be seen of it."""
    text = as_read(text)
    return float(text) if re.fullmatch(r"[+-]?\d+(\.\d+)?", text) else text

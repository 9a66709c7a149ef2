"""A user's own questions: one file (or a train and a test file) in a generic schema.

A row is `{"id"?, "question", "choices"?: [...], "answer", "context"?}`. With choices, the answer is a
letter, the text of an option or its index from 0; without, it is one of a closed set of labels.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bara_pyro.data.reading import Rows, read_file
from bara_pyro.data.rows import to_examples
from bara_pyro.data.schemas import ANSWER, LETTERS, Row, answer_of, digest, lettered, options_of, text_of
from bara_pyro.data.types import Example, Task
from bara_pyro.errors import ConfigError, DataError

SUFFIXES = (".jsonl", ".json", ".csv")


def load_file(
    path: Path,
    *,
    test_file: Path | None = None,
    test_fraction: float = 0.2,
    classes: Sequence[str] | None = None,
) -> Task:
    """Read a user's file as a `Task`.

    Args:
        path: the file, or the train file where `test_file` is given.
        test_file: the rows to test on.
        test_fraction: share of `path` to test on where there is no `test_file`; a row's side follows from a
            hash of its id alone, so it stays when rows are added and is the same for every seed.
        classes: the labels in class order, for rows without choices; by default the sorted answers of `path`.

    Raises:
        DataError: see `data.reading` and `data.schemas`; also a file in which only some rows have choices.
        ConfigError: `test_fraction` is not between 0 and 1.
    """
    if not 0 < test_fraction < 1:
        raise ConfigError(f"test_fraction is {test_fraction}: choose a number between 0 and 1.")
    rows = read_file(path)
    test_rows = read_file(test_file) if test_file else []
    with_choices = _has_choices(rows, path)
    if test_file and _has_choices(test_rows, test_file) != with_choices:
        raise DataError(f"Only one of {path} and {test_file} has 'choices': give them to both or to neither.")
    if with_choices:
        lists = [row["choices"] for row in rows + test_rows if isinstance(row["choices"], list)]
        labels = LETTERS[: max(map(len, lists), default=2)]
    else:
        labels = tuple(map(str, classes)) if classes else _classes_of(rows, path)

    def schema(row: Row, row_id: str) -> Example:
        return generic(row, row_id, labels)

    if test_file:
        train = to_examples(rows, schema, str(path), "train")
        test = to_examples(test_rows, schema, str(test_file), "test")
        note = f"tested on {test_file.name}"
    else:
        train, test = _divide(to_examples(rows, schema, str(path), "row"), path, test_fraction)
        note = f"{len(test)} of {len(train) + len(test)} rows tested on, chosen by a hash of their ids"
    return Task(path.stem, labels, train=tuple(train), test=tuple(test), notes=(note,))


def generic(row: Row, row_id: str, labels: Sequence[str]) -> Example:
    """Turn a row of the generic schema into an `Example`; `labels` only matter where it has no choices."""
    question, context = text_of(row, "question"), str(row.get("context") or "").strip()
    answer = answer_of(row, "answer")
    if row.get("choices"):
        options = listed_options(row["choices"])
        return Example(row_id, lettered(question, options), _choice(answer, options), context)
    return Example(row_id, with_cue(question), _label(answer, labels), context)


def with_cue(question: str) -> str:
    """Return the question with "Answer:" behind it, unless it ends in that already."""
    return question if re.search(r"Answer ?:$", question) else f"{question}\n{ANSWER}"


def listed_options(choices: Any) -> list[str]:
    """Return the options as texts; raise `DataError` where they are no list of 2 to 26."""
    if not isinstance(choices, list):
        raise DataError(f"its 'choices' are no list: {choices!r} (in CSV, separate them with '|').")
    return options_of([str(option) for option in choices], "choices")


def _choice(answer: Any, options: Sequence[str]) -> int:
    """Return the option meant by a letter, by its text or by its index from 0; refuse a double meaning."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        meant = {answer} & set(range(len(options)))
    else:
        said = str(answer).strip()
        letters = LETTERS[: len(options)]
        meant = {place for place, names in enumerate(zip(letters, options, strict=True)) if said in names}
        if not meant and said.isdecimal():
            meant = {int(said)} & set(range(len(options)))
    if len(meant) > 1:
        raise DataError(f"its answer {answer!r} fits more than one option: give the option's index from 0.")
    if not meant:
        last = LETTERS[len(options) - 1]
        raise DataError(
            f"its answer {answer!r} is no letter from A to {last}, no option's text and no index from 0 "
            f"to {len(options) - 1}."
        )
    return meant.pop()


def _label(answer: Any, labels: Sequence[str]) -> int:
    """Return the class of an answer: a label, or its index where no label reads like that."""
    if str(answer).strip() in labels:
        return list(labels).index(str(answer).strip())
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(labels):
        return answer
    raise DataError(f"its answer {answer!r} is none of the labels {', '.join(labels)}.")


def _has_choices(rows: Rows, path: Path) -> bool:
    having = [bool(row.get("choices")) for row in rows]
    if any(having) != all(having):
        number = having.index(not having[0]) + 1
        with_or_without = "has no" if having[0] else "has"
        raise DataError(
            f"{path}, row {number} {with_or_without} 'choices', unlike row 1: give them to all or to none."
        )
    return having[0]


def _classes_of(rows: Rows, path: Path) -> tuple[str, ...]:
    answers = sorted({str(row["answer"]).strip() for row in rows if row.get("answer") not in (None, "")})
    if not 2 <= len(answers) <= len(LETTERS):
        raise DataError(
            f"{path} has {len(answers)} different answers, and a closed set of 2 to {len(LETTERS)} is "
            "needed: name the classes, or give each row its 'choices'."
        )
    return tuple(answers)


def _divide(
    examples: Sequence[Example], path: Path, test_fraction: float
) -> tuple[list[Example], list[Example]]:
    def tested(example: Example) -> bool:
        return int(digest(example.id)[:8], 16) < test_fraction * 2**32

    train = [example for example in examples if not tested(example)]
    test = [example for example in examples if tested(example)]
    if not train or not test:
        raise DataError(f"{path} has too few rows ({len(examples)}) to split: give a test file.")
    return train, test

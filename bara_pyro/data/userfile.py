"""Make a task from a user's own rows: find their classes, and split them into train and test."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

from bara_pyro.columns import ColumnNames, ColumnOptions, column_names, option_of
from bara_pyro.data.clusters import set_aside, together
from bara_pyro.data.columns import (
    as_compared,
    as_read,
    columns_note,
    find_columns,
    id_column,
    own_example,
)
from bara_pyro.data.rows import carve, check_disjoint, check_new, divide, repeats, to_examples, too_few
from bara_pyro.data.tables import Data, DataTable, label_text, missing, read_table
from bara_pyro.data.types import LETTERS, Columns, Example, Task
from bara_pyro.errors import ConfigError, DataError

TEST_FRACTION = 0.2  # share of rows held out for testing by default
# More than 26 different answers must be fewer than this share of the rows to be taken for classes.
CLOSED = 0.5


def task_from_rows(
    data: Data,
    test: Data | None = None,
    *,
    name: str | None = None,
    classes: Sequence[str] | None = None,
    test_fraction: float = TEST_FRACTION,
    validation_rows: int = 0,
    seed: int = 0,
    **columns: Unpack[ColumnOptions],
) -> Task:
    """Make a task from your own rows.

    Args:
        data: the rows: a .csv, .tsv, .jsonl, .json or .parquet file, a pandas DataFrame, a `datasets.Dataset`
            or a list of dictionaries.
        test: the test rows, in any of these forms.
        name: name of the task; default: the file's name, or "rows".
        classes: the labels in class order, for rows without choices. Default: the order that the data define
            (a ClassLabel of `datasets`, a categorical of pandas), else sorted, numbers by size.
        test_fraction: without `test`: share of `data` to hold out for testing, the same in each class
            (`data.rows.divide`).
        validation_rows: training rows to set aside, for choosing settings or for calibrating decisions.
        seed: seed of the choice of validation rows.
        **columns: `text_column`, `label_column`, `choices_column` and `context_column`; columns that are not
            given are found by their usual names (`bara_pyro.columns`), and the task's notes list them.
            `cluster_column` says which rows belong together (an author, a patient, a document): rows of one
            cluster are always in the same split, so there may be fewer validation and test rows than
            requested. Default: rows are independent.

    Returns:
        The task, with its splits as tuples and notes on how the rows were read.

    Raises:
        DataError: the rows cannot be read or are invalid; the error names the file and the row.
        ConfigError: `test_fraction` is not between 0 and 1, or `validation_rows` is out of range.

    Examples:
        >>> import bara_pyro as bp
        >>> reviews = [{"text": f"{word} {i}", "label": word} for word in ("bad", "good") for i in range(10)]
        >>> task = bp.task_from_rows(reviews)  # or a DataFrame, a datasets.Dataset, the path of a file
        >>> task.names, len(task.train), len(task.test)
        (('bad', 'good'), 16, 4)
        >>> task.test[0].context, task.test[0].question
        ('bad 0', 'Answer:')
    """
    if not 0 < test_fraction < 1:
        raise ConfigError(f"test_fraction is {test_fraction}: choose a number between 0 and 1.")
    table = read_table(data)
    chosen = find_columns(table.columns, column_names(columns), table.place)
    chosen = replace(chosen, indices=classes is not None)
    tested = None if test is None else read_table(test)
    if tested is not None:
        _check_same_kind(table, tested, chosen)
    parts = [part for part in (table, tested) if part]
    chosen = replace(chosen, id=id_column([part.rows for part in parts], vars(chosen).values()))
    names = () if _has_choices(table, chosen) else _names(table, chosen.label or "", classes)
    schema = partial(own_example, columns=chosen, names=names)

    def examples(part: DataTable, split: str) -> list[Example]:
        return to_examples(part.rows, schema, part.place, split, answer=chosen.label, ids=chosen.id)

    name = name or (Path(data).stem if isinstance(data, str | Path) else "rows")
    if tested is not None:
        train, test_rows = examples(table, "train"), examples(tested, "test")
        check_new(train, test_rows, name)
        note = f"tested on {Path(tested.place).name}"
    else:
        train, test_rows = _divided(examples(table, "row"), test_fraction, chosen, table.place)
        note = f"{len(test_rows)} of {len(train) + len(test_rows)} rows held out for testing, "
        note += "whole clusters" if chosen.cluster else "the same share of each class"
        note += f", chosen by a hash of their {'names' if chosen.cluster else 'ids'}"
        if copies := sum(map(bool, together([*train, *test_rows], clusters=False))):
            note += f"; {copies} rows have the same text as another row and stay in its split"
    check_disjoint(train, test_rows, name)
    classes_said = _class_notes(names, train, test_rows, name)
    if names:
        classes_said += _spelling_notes(parts, chosen.label or "")
    notes = [columns_note(chosen), *classes_said, note, *repeats(train, test_rows)]
    if not chosen.cluster or not 0 < validation_rows < len(train):
        training, validation = carve(train, validation_rows, seed, together(train))
    else:
        aside = set_aside(train, validation_rows, f"{seed}/", column=chosen.cluster)
        training, validation = (tuple(part) for part in aside)
    if names and (lost := sorted({row.label for row in train} - {row.label for row in training})):
        raise DataError(
            f"With {validation_rows} rows set aside for validation, no training row has the answer "
            f"{names[lost[0]]!r}: set fewer rows aside (--validation-rows), or give more rows."
        )
    if validation and (chosen.cluster or len(validation) < validation_rows):
        how = "whole clusters" if chosen.cluster else "keeping rows with the same text together"
        notes.append(f"{len(validation)} rows set aside for validation, {how}")
    labels = names or LETTERS[: max(len(row.options) for row in (*train, *test_rows))]
    return Task(name, labels, training, validation, tuple(test_rows), tuple(notes), names, chosen)


def _divided(
    rows: Sequence[Example], test_fraction: float, columns: Columns, place: str
) -> tuple[list[Example], list[Example]]:
    if columns.cluster:
        return set_aside(rows, round(test_fraction * len(rows)), column=columns.cluster)
    train, test = divide(rows, test_fraction)
    if not test:
        classes = len({row.label for row in rows})  # each needs at least one training row
        raise too_few(place, "rows", len(rows), test_fraction, classes)
    return train, test


def _check_same_kind(table: DataTable, tested: DataTable, columns: Columns) -> None:
    """Refuse a train and a test file of which only one has choices."""
    choices = columns.choices if columns.choices in tested.columns else None
    cluster = columns.cluster if columns.cluster in tested.columns else None
    named = ColumnNames(columns.text, columns.label, choices, columns.context, cluster)
    theirs = find_columns(tested.columns, named, tested.place)
    if _has_choices(table, columns) != _has_choices(tested, theirs):
        raise DataError(
            f"Only one of {table.place} and {tested.place} has 'choices': add them to both or to neither."
        )


def _has_choices(table: DataTable, columns: Columns) -> bool:
    if columns.choices is None:
        return False
    having = [not missing(row.get(columns.choices)) for row in table.rows]
    if any(having) != all(having):
        number = having.index(not having[0]) + 1
        with_or_without = "has no" if having[0] else "has"
        raise DataError(
            f"{table.place}, row {number} {with_or_without} {columns.choices!r}, unlike row 1: give them in "
            "all rows or in none."
        )
    return having[0]


def _names(table: DataTable, column: str, classes: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the classes: given, defined by the column, or found in its cells."""
    names = tuple(map(label_text, classes or table.classes.get(column, ()))) or _found(table, column)
    if len(set(map(as_read, names))) != len(names) or len(names) < 2:
        listed = ", ".join(name if name == as_read(name) else ascii(name) for name in names)
        raise DataError(f"The classes are {listed}: give two or more different names.")
    return names


def _found(table: DataTable, column: str) -> tuple[str, ...]:
    written = _spellings([table], column)
    answers = {max(sorted(ways), key=ways.__getitem__) for ways in written.values()}
    if len(answers) < 2:
        only = f"only one answer, {next(iter(answers))!r}," if answers else "no answer"
        raise DataError(
            f"{table.place} has {only} in {column!r}: give at least two, or name another column with "
            f"{option_of('label')}."
        )
    if len(answers) > max(len(LETTERS), CLOSED * len(table.rows)):
        raise DataError(
            f"{table.place} has {len(answers)} different answers in {len(table.rows)} rows of {column!r}, "
            "too many for classes: name another column, or give each row its choices."
        )
    try:
        return tuple(sorted(sorted(answers), key=float))
    except ValueError:
        return tuple(sorted(answers))


def _spellings(parts: Sequence[DataTable], column: str) -> dict[str, Counter[str]]:
    """Return for each answer, without invisible characters, how often each of its spellings occurs."""
    spellings: dict[str, Counter[str]] = {}
    for part in parts:
        for number, row in enumerate(part.rows, start=1):
            if not missing(row.get(column)):
                answer = label_text(row[column], f"{part.place}, row {number}: the {column!r}")
                spellings.setdefault(as_read(answer), Counter())[answer] += 1
    return spellings


def _spelling_notes(parts: Sequence[DataTable], column: str) -> list[str]:
    """Return notes on answers that differ only in invisible characters."""
    written = _spellings(parts, column).values()
    return [
        f"{' and '.join(map(ascii, sorted(ways)))} look the same and count as one class"
        for ways in written
        if len(ways) > 1
    ]


def _class_notes(
    names: Sequence[str], train: Sequence[Example], test: Sequence[Example], task: str
) -> list[str]:
    """Return notes on the number of rows of each class, and on classes that may be typing errors.

    Raises:
        DataError: a class has test rows but no training rows.
    """
    if not names:
        return []
    trained, tested = (Counter(names[row.label] for row in rows) for rows in (train, test))
    if absent := sorted(tested.keys() - trained.keys()):
        raise DataError(
            f"The answer {absent[0]!r} is in {tested[absent[0]]} test rows of {task} but in no training row: "
            "add training rows with it, or leave it out."
        )
    counts = trained + tested
    notes = ["classes, in this order: " + ", ".join(f"{name} ({counts[name]})" for name in names)]
    if unused := [name for name in names if not counts[name]]:
        notes.append(f"no row has the answer {', '.join(map(repr, unused))}: a typing error in the classes?")
    total = sum(counts.values())
    if (single := [name for name in names if counts[name] == 1]) and total > 2 * len(names):
        listed = ", ".join(map(repr, single))
        notes.append(
            f"only 1 row of {total} has the answer {listed}: a typing error? list the right classes with "
            "classes (--classes)"
        )
    return notes + _alike(names)


def _alike(names: Sequence[str]) -> list[str]:
    """Return notes on classes that differ only in case, or are the same number."""
    read: dict[float | str, list[str]] = {}
    for name in names:
        read.setdefault(as_compared(name.casefold()), []).append(name)
    return [
        f"{' and '.join(map(repr, same))} are almost the same but are {len(same)} classes: a typing error?"
        for same in read.values()
        if len(same) > 1
    ]

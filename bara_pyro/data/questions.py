"""Read new rows for a trained model, in the format of the task it was trained on."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from bara_pyro.columns import ColumnNames, option_of
from bara_pyro.data.columns import find_columns, id_column, listed_options, own_context, own_example, own_text
from bara_pyro.data.labels import as_asked, with_cue
from bara_pyro.data.registry import SOURCES
from bara_pyro.data.rows import to_examples
from bara_pyro.data.schemas import Row, Schema
from bara_pyro.data.tables import Data, DataTable, missing, read_table
from bara_pyro.data.types import Columns, Example, Task
from bara_pyro.errors import DataError


def load_questions(
    data: Data, task: Task, *, given: ColumnNames | None = None, answers: bool = False
) -> list[Example]:
    """Read rows for a model that was trained on `task`; answers may be missing (label -1).

    Rows with the columns of the task's dataset are read with its schema. Other rows are read by the columns
    that the user names, by the columns trained on, or by columns with usual names. Classes are matched by
    name, in any order. If each row lists its own options, a row without options may hold a whole prompt that
    ends in "Answer:".

    Args:
        data: see `data.tables.read_table`.
        task: the model was trained on it; only its name, labels, names and columns are used.
        given: columns that the user names.
        answers: whether every row needs its answer.

    Raises:
        DataError: the rows cannot be read, or their classes or options are not the task's.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.data import load_questions
        >>> reviews = [{"text": f"{word} {i}", "label": word} for word in ("bad", "good") for i in range(10)]
        >>> task = bp.task_from_rows(reviews)
        >>> [row] = load_questions([{"text": "good or so"}], task)
        >>> row.context, row.question, row.label  # asked as the task's rows were; the answer is not known
        ('good or so', 'Answer:', -1)
    """
    table, given = read_rows(data, task, given), given or ColumnNames()
    source = SOURCES.get(task.name) if task.columns is None else None
    labels = names = task.names
    schema: Schema
    answer: str | None
    ids: str | None = None
    if source is not None and given == ColumnNames() and {*source.columns} <= {*table.columns}:
        labels, names = source.labels, source.names
        schema, answer = source.schema, source.answer
    else:
        columns = _columns(table, task, given, answers)
        schema, answer, ids = partial(_own_row, columns, task), columns.label, columns.id
    rows = to_examples(table.rows, schema, table.place, "row", answer=answer if answers else None, ids=ids)
    _check_options(rows, task, table.place)
    natural = Task(Path(table.place).stem, labels, test=rows, names=names)
    return list(as_asked(natural, task.labels, task.names).test)


def text_column(task: Task) -> str:
    """Return the column of the text in rows for a trained model."""
    if task.columns is not None:
        return task.columns.text
    source = SOURCES.get(task.name)
    return source.columns[0] if source else "question"


def read_rows(data: Data, task: Task, given: ColumnNames | None = None) -> DataTable:
    """Return rows for a trained model as a table; plain texts go into its column of texts."""
    return read_table(data, text_column=(given and given.text) or text_column(task))


def _columns(table: DataTable, task: Task, given: ColumnNames, answers: bool) -> Columns:
    """Return the columns to read: named by the user, else trained on, else with a usual name."""
    there = table.columns
    trained = task.columns or Columns("")
    known = {kind: name for kind, name in asdict(trained).items() if name in there}
    named = {kind: name or known.get(kind) for kind, name in asdict(given).items()}
    columns = find_columns(there, ColumnNames(**named), table.place, answers=answers)
    if trained.context and not columns.context:
        raise DataError(
            f"{table.place} has no column {trained.context!r}, the context that the run was trained with: "
            f"name it with {option_of('context')}, or add it, with empty cells if needed."
        )
    ids = id_column([table.rows], vars(columns).values())
    return replace(columns, id=ids, indices=trained.indices)


def _own_row(columns: Columns, task: Task, row: Row, row_id: str) -> Example:
    if task.names:
        _check_classes(row, columns, task)
    elif columns.choices is None or missing(row.get(columns.choices)):
        return _whole_prompt(row, row_id, columns, task)
    return own_example(row, row_id, columns, task.names)


def _check_classes(row: Row, columns: Columns, task: Task) -> None:
    """Refuse a row whose choices are not the classes of the run, in any order."""
    cell = None if columns.choices is None else row.get(columns.choices)
    if missing(cell):
        return
    options = listed_options(cell, columns.choices or "")[0]
    if set(options) != set(task.names):
        raise DataError(
            f"its choices {', '.join(options)} are not the classes of the run, {', '.join(task.names)}: "
            "leave the choices out, or give other rows."
        )


def _whole_prompt(row: Row, row_id: str, columns: Columns, task: Task) -> Example:
    prompt = own_text(row, columns.text)
    if with_cue(prompt) != prompt:
        raise DataError(
            f"it has no {columns.choices or 'choices'!r}: give its options ({', '.join(task.labels)} of task "
            f"{task.name!r}) there as a list, or end {columns.text!r} like 'A:goats B:ducks Answer :'."
        )
    answer = None if columns.label is None else row.get(columns.label)
    if not missing(answer) and answer not in task.labels:
        raise DataError(f"its answer {answer!r} is not one of {', '.join(task.labels)}.")
    label = -1 if missing(answer) else task.labels.index(answer)
    return Example(row_id, prompt, label, own_context(row, columns))


def _check_options(rows: list[Example], task: Task, place: str) -> None:
    for number, row in enumerate(rows, start=1):
        if max(len(row.options), row.label + 1) > len(task.labels):
            raise DataError(
                f"{place}, row {number}: it has {len(row.options)} options, but the answers of task "
                f"{task.name!r} end at {task.labels[-1]}: leave the row out."
            )

"""Rows to be answered by a model that was trained on a task: their answers may be unknown."""

from pathlib import Path

from bara_pyro.data.reading import read_file
from bara_pyro.data.rows import to_examples
from bara_pyro.data.schemas import LETTERS, Row, text_of
from bara_pyro.data.types import Example, Task
from bara_pyro.data.userfile import generic, listed_options, with_cue
from bara_pyro.errors import DataError


def load_questions(path: Path, task: Task) -> list[Example]:
    """Read questions for a model trained on `task` from a .jsonl, .json or .csv file.

    The schema is that of a user's own file (`data.userfile`) with an optional "answer": a row without one has
    the label -1. Where the task's labels are letters, a row brings its "choices", or a question that is a
    whole prompt with its options and ends in "Answer:"; where they are words, it has no choices.

    Raises:
        DataError: an unreadable file, a row that does not fit the task's labels, or an unknown answer.
    """
    lettered_task = tuple(task.labels) == LETTERS[: len(task.labels)]

    def schema(row: Row, row_id: str) -> Example:
        _check_fits(row, task, lettered_task)
        if row.get("answer") not in (None, ""):
            return generic(row, row_id, task.labels)
        stand_in = 0 if row.get("choices") else task.labels[0]  # the prompt does not depend on the answer
        example = generic({**row, "answer": stand_in}, row_id, task.labels)
        return Example(example.id, example.question, -1, example.context)

    return to_examples(read_file(path), schema, str(path), "row")


def _check_fits(row: Row, task: Task, lettered_task: bool) -> None:
    question, labels = text_of(row, "question"), ", ".join(task.labels)
    if not row.get("choices"):
        if lettered_task and with_cue(question) != question:
            raise DataError(
                f"it has no 'choices', and the answers of task {task.name!r} are letters ({labels})."
            )
    elif not lettered_task:
        raise DataError(
            f"it has 'choices', and the answers of task {task.name!r} are {labels}: leave them out."
        )
    elif len(options := listed_options(row["choices"])) > len(task.labels):
        raise DataError(
            f"it has {len(options)} options, and the answers of task {task.name!r} end at {labels[-1]}."
        )

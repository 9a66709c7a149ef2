"""The way out where a label is several tokens: the same questions, answered by a letter."""

from dataclasses import replace

from bara_pyro.data.schemas import ANSWER, LETTERS, lettered
from bara_pyro.data.types import Example, Task
from bara_pyro.errors import DataError


def as_letters(task: Task) -> Task:
    """Return `task` with its labels printed as lettered options and the letters as labels.

    A task with labels ('False', 'True') asks "... A) False B) True Answer:" and has the labels ('A', 'B').
    Rows, ids, classes and splits stay as they are; a task whose labels are letters already is returned
    unchanged.

    Raises:
        DataError: more labels than letters.
    """
    if len(task.labels) > len(LETTERS):
        raise DataError(
            f"Task {task.name!r} has {len(task.labels)} labels, and letters end at {LETTERS[-1]}."
        )
    letters = LETTERS[: len(task.labels)]
    if task.labels == letters:
        return task

    def rewrite(example: Example) -> Example:
        stem = example.question.removesuffix(ANSWER).rstrip()
        return replace(example, question=lettered(stem, task.labels))

    meaning = ", ".join(f"{letter} = {label}" for letter, label in zip(letters, task.labels, strict=True))
    return replace(
        task,
        labels=letters,
        train=tuple(map(rewrite, task.train)),
        validation=tuple(map(rewrite, task.validation)),
        test=tuple(map(rewrite, task.test)),
        notes=(*task.notes, f"labels asked for as letters: {meaning}"),
    )

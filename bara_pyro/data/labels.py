"""What a model answers with: the names of the classes, or letters that stand for them."""

import string
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from bara_pyro.data.answer_tokens import answer_token_ids, label_tokens
from bara_pyro.data.schemas import ANSWER, lettered
from bara_pyro.data.tokens import Tokenizer
from bara_pyro.data.types import LETTERS, Example, Task
from bara_pyro.errors import DataError

# What can stand for a class, in the order in which it is assigned.
CODES = (*LETTERS, *string.ascii_lowercase, *string.digits, *map("".join, product(LETTERS, repeat=2)))


def encode_labels(task: Task, tokenizer: Tokenizer, style: str = "auto") -> Task:
    """Return a task whose answers are what a model answers with: single tokens, or whole texts.

    Args:
        task: as loaded.
        tokenizer: of the language model.
        style: "words" leaves the names of the classes as answers; "letters" assigns letters to them (`CODES`,
            in class order, without those that are not a single token); "auto" does so where the names are
            not single, different tokens; "texts" answers with the names, of any number of tokens, whose whole
            texts are scored (`data.texts`).

    Returns:
        The task; as it is where its answers are letters already.

    Raises:
        DataError: letters are needed, and the tokenizer has too few.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.data import encode_labels
        >>> words = ("very bad", "very good")
        >>> rows = [{"text": f"{word} {i}", "label": word} for word in words for i in range(10)]
        >>> asked = encode_labels(bp.task_from_rows(rows), bp.load_backbone("microworld").tokenizer)
        >>> asked.labels, asked.names  # two words are no single token: letters stand for them
        (('A', 'B'), ('very bad', 'very good'))
        >>> print(asked.train[0].question)
        A) very bad
        B) very good
        Answer:
    """
    if style == "texts":
        return replace(task, labels=task.names) if task.names else task
    if style == "words" or not task.names or task.labels != task.names:
        return task
    if style == "auto" and _single_tokens(tokenizer, task.labels):
        return task
    return as_letters(task, _usable_codes(tokenizer, len(task.names)))


def _usable_codes(tokenizer: Tokenizer, count: int) -> tuple[str, ...]:
    """Return the first of `CODES` that are single, different tokens."""
    found: dict[int, str] = {}
    for code in CODES:
        tokens = label_tokens(tokenizer, code)
        if len(tokens) == 1 and tokens[0] != tokenizer.unk_token_id:
            found.setdefault(tokens[0], code)
        if len(found) == count:
            return tuple(found.values())
    raise DataError(
        f"There are {count} classes, and the tokenizer has single tokens for only {len(found)} letters and "
        "numbers: score whole texts with labels='texts' (--labels texts), or merge classes."
    )


def _single_tokens(tokenizer: Tokenizer, labels: Sequence[str]) -> bool:
    try:
        answer_token_ids(tokenizer, labels)
    except DataError:
        return False
    return True


def as_letters(task: Task, codes: Sequence[str] = CODES) -> Task:
    """Return `task` with its labels printed as lettered options and the letters as labels.

    A task with labels ('False', 'True') asks "... A) False B) True Answer:" and has the labels ('A', 'B') and
    the names ('False', 'True'). Rows, ids, classes and splits stay as they are; a task whose labels are
    letters already is returned unchanged.

    Args:
        task: its labels are its names.
        codes: what to assign, in class order.

    Raises:
        DataError: more labels than letters.

    Examples:
        >>> from bara_pyro.data import Example, Task, as_letters
        >>> asked = as_letters(Task("facts", ("False", "True"), (Example("a", "Ice is cold . Answer:", 1),)))
        >>> asked.labels, asked.names
        (('A', 'B'), ('False', 'True'))
        >>> print(asked.train[0].question)
        Ice is cold .
        A) False
        B) True
        Answer:
    """
    if len(task.labels) > len(codes):
        raise DataError(f"Task {task.name!r} has {len(task.labels)} labels, and letters end at {codes[-1]}.")
    codes = tuple(codes[: len(task.labels)])
    if task.labels == codes or task.labels != (task.names or task.labels):
        return task

    def rewrite(example: Example) -> Example:
        stem = example.question.removesuffix(ANSWER).rstrip()
        return replace(example, question=lettered(stem, task.labels, codes))

    note = f"labels asked for as letters: {_meaning(codes, task.labels)}"
    return task.each_row(rewrite, labels=codes, names=task.labels, notes=(*task.notes, note))


def as_asked(task: Task, labels: Sequence[str], names: Sequence[str]) -> Task:
    """Return a task with its classes in the order, and under the letters, that a model was trained with.

    Args:
        task: whose classes are among `names`, in any order; or whose rows list options of their own.
        labels: the model's answers.
        names: what they stand for; empty where each row lists options of its own.

    Raises:
        DataError: the task's classes are others, or its prompts print them in another order.

    Examples:
        >>> from bara_pyro.data import Example, Task, as_asked
        >>> row = Example("a", "Ice is cold .", 0)
        >>> task = Task("facts", ("True", "False"), (row,), names=("True", "False"))
        >>> again = as_asked(task, ("False", "True"), ("False", "True"))  # the order of a run
        >>> again.labels, again.train[0].label
        (('False', 'True'), 1)
    """
    labels, names = tuple(labels), tuple(names)
    if not names and not task.names:
        return task
    strange = [name for name in task.names if name not in names]
    if strange or not (names and task.names):
        own, theirs = (", ".join(each) or "the options of each row" for each in (task.names, names))
        first = f", which has no {strange[0]!r}" if strange and names else ""
        raise DataError(
            f"The answers of {task.name!r} are {own}, and the run's are {theirs}{first}: give other rows."
        )
    if (task.labels, task.names) == (labels, names):
        return task
    if labels == names == task.names:  # asked with letters, answered with the names: their texts are scored
        return replace(task, labels=labels)
    if task.labels != task.names:
        raise DataError(
            f"Task {task.name!r} prints its answers as {_meaning(task.labels, task.names)}, and the run was "
            f"trained on {_meaning(labels, names)}: give rows with their labels in words."
        )
    places = [names.index(name) for name in task.names]

    def reorder(example: Example) -> Example:
        label = places[example.label] if example.label >= 0 else -1
        if example.truth is None:
            return replace(example, label=label)
        truth = [0.0] * len(names)
        for place, likely in zip(places, example.truth, strict=True):
            truth[place] = likely
        return replace(example, label=label, truth=tuple(truth))

    ordered = task.each_row(reorder, labels=names, names=names)
    return ordered if labels == names else as_letters(ordered, labels)


def _meaning(labels: Sequence[str], names: Sequence[str]) -> str:
    return ", ".join(f"{label} = {name}" for label, name in zip(labels, names, strict=True))

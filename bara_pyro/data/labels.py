"""Choose what a model answers with, and write into a question what it can answer and the cue "Answer:"."""

import re
import string
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from bara_pyro.data.tokens import Tokenizer, answer_token_ids, label_tokens
from bara_pyro.data.types import ANSWER, LETTERS, ChatFrame, Example, Task
from bara_pyro.errors import DataError

# Codes that can stand for a class, in the order of assignment.
CODES = (*LETTERS, *string.ascii_lowercase, *string.digits, *map("".join, product(LETTERS, repeat=2)))


def lettered(stem: str, options: Sequence[str], letters: Sequence[str] = LETTERS) -> str:
    r"""Return the question with its options, one per line, and the cue for the answer.

    >>> lettered("Which is a fruit?", ["stone", "pear"])
    'Which is a fruit?\nA) stone\nB) pear\nAnswer:'
    """
    lines = [f"{letter}) {option}" for letter, option in zip(letters, options, strict=False)]
    return "\n".join([*([stem] if stem else []), *lines, ANSWER])


def with_cue(question: str) -> str:
    """Return the question followed by "Answer:", unless it ends so already."""
    return question if re.search(r"Answer ?:$", question) else f"{question}\n{ANSWER}"


def without_cue(example: Example) -> Example:
    """Return a row whose question does not end in "Answer:", for a prompt that ends in another way."""
    return replace(example, question=re.sub(r"\s*Answer ?:$", "", example.question))


def unlisted(example: Example) -> Example:
    """Return a row without the list of options in its prompt, because their texts are scored."""
    if not example.texts:
        return example
    stem = example.question.removesuffix(lettered("", example.texts)).rstrip()
    return replace(example, question=f"{stem}\n{ANSWER}" if stem else ANSWER)


def encode_labels(task: Task, tokenizer: Tokenizer, style: str = "auto") -> Task:
    """Return a task with answers that a model can give: single tokens, or whole texts.

    Args:
        task: the loaded task.
        tokenizer: the language model's tokenizer.
        style: "words" answers with the names of the classes; "letters" assigns a letter to each (`CODES`, in
            class order, skipping codes that are not single tokens); "auto" uses letters unless the names are
            different single tokens; "texts" scores the whole text of each name (`data.split.TextBatch`).

    Returns:
        The task, unchanged if its answers are letters already.

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
    if style == "auto":
        with suppress(DataError):  # a label is several tokens
            answer_token_ids(tokenizer, task.labels, task.chat)
            return task
    return as_letters(task, _usable_codes(tokenizer, len(task.names), task.chat))


def _usable_codes(tokenizer: Tokenizer, count: int, chat: ChatFrame | None) -> tuple[str, ...]:
    """Return the first of `CODES` that are single, different tokens."""
    label_of: dict[int, str] = {}
    for code in CODES:
        tokens = label_tokens(tokenizer, code, chat)
        if len(tokens) == 1 and tokens[0] != tokenizer.unk_token_id:
            label_of.setdefault(tokens[0], code)
        if len(label_of) == count:
            return tuple(label_of.values())
    raise DataError(
        f"There are {count} classes, and the tokenizer has single tokens for only {len(label_of)} letters "
        "and digits: score whole texts with labels='texts' (--labels texts), or merge classes."
    )


def as_letters(task: Task, codes: Sequence[str] = CODES) -> Task:
    """Return a task that lists its labels as lettered options and answers with the letters.

    A task with labels ('False', 'True') then asks "... A) False B) True Answer:", with labels ('A', 'B') and
    names ('False', 'True'). Rows, ids, classes and splits do not change. A task whose labels are letters
    already is returned unchanged.

    Args:
        task: its labels are its names.
        codes: the letters to assign, in class order.

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
        raise DataError(
            f"Task {task.name!r} has {len(task.labels)} labels, but letters end at {codes[-1]}: merge some."
        )
    codes = tuple(codes[: len(task.labels)])
    if task.labels == codes or task.labels != (task.names or task.labels):
        return task

    def rewrite(example: Example) -> Example:
        stem = example.question.removesuffix(ANSWER).rstrip()
        return replace(example, question=lettered(stem, task.labels, codes))

    note = f"letters stand for the labels: {_meaning(codes, task.labels)}"
    return task.each_row(rewrite, labels=codes, names=task.labels, notes=(*task.notes, note))


def as_asked(task: Task, labels: Sequence[str], names: Sequence[str]) -> Task:
    """Return a task with the order of classes, and the letters, that a model was trained with.

    Args:
        task: a task with classes among `names`, in any order; or with rows that list their own options.
        labels: the model's answers.
        names: the names of the model's classes; empty if each row lists its options.

    Raises:
        DataError: the task has other classes, or its prompts list them in another order.

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
            f"The answers of {task.name!r} are {own}, but the run's are {theirs}{first}: give rows with the "
            "run's answers."
        )
    if (task.labels, task.names) == (labels, names):
        return task
    if labels == names == task.names:  # the prompts list letters, but the texts of the names are scored
        return replace(task, labels=labels)
    if task.labels != task.names:
        raise DataError(
            f"Task {task.name!r} lists its answers as {_meaning(task.labels, task.names)}, but the run was "
            f"trained on {_meaning(labels, names)}: give rows with labels as words."
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


def offered_of(counts: Sequence[int], classes: int) -> Tensor:
    """Return which classes rows offer, bool, `n x C`, from the number of answers of each row; 0: all."""
    numbers = torch.tensor([count or classes for count in counts])
    return torch.arange(classes) < numbers[:, None]


def among_offered(log_probs: Tensor, counts: Sequence[int]) -> Tensor:
    """Return log-probabilities conditional on the answers that each row offers, `S x n x C`.

    The language model gives some probability to letters that other rows use and this row does not. `counts`
    are the number of answers of each of the n rows, 0 for all; they are empty if every row offers all.
    `log_probs` are returned unchanged if answers that are not offered, then `-inf`, had no probability.
    """
    if not counts:
        return log_probs
    missing = ~offered_of(counts, log_probs.shape[-1]).to(log_probs.device)
    if not (log_probs.masked_fill(~missing, -torch.inf) > -torch.inf).any():
        return log_probs
    return log_probs.masked_fill(missing, -torch.inf).log_softmax(-1)

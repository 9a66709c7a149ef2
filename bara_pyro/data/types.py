"""The types that every data source produces: `Example` (a row), `Task` (splits), `Batch` (tensors)."""

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from bara_pyro.errors import DataError

LETTERS = tuple(string.ascii_uppercase)
ANSWER = "Answer:"


@dataclass(frozen=True)
class Example:
    """One question with a fixed set of answers.

    Attributes:
        id: stable identifier, unique within its task; results are stored under it.
        question: the text that is never cut (question, options, "Answer:").
        label: index of the right answer in `Task.labels`, or -1 if unknown.
        context: text before the question (a passage, an article); its end is cut if the prompt is too long.
        truth: `p(answer | question)` over `Task.labels`, if it is known, as in the microworld.
        options: the source's names of the options, if each row lists its own.
        texts: texts of these options, in the order in which `question` lists them; empty if unknown.
        cluster: name of a group of dependent rows (an author, a patient, a resident of the microworld); empty
            if the row is independent.
    """

    id: str
    question: str
    label: int = -1
    context: str = ""
    truth: tuple[float, ...] | None = None
    options: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    cluster: str = ""


@dataclass(frozen=True)
class Columns:
    """The columns that are read from a user's rows; None if there is no such column.

    `id` is a column of identifiers with another name than "id", which needs no entry here. With `indices` the
    user gave the order of the classes, so a whole number that is not a class's name is a class's index.
    """

    text: str
    label: str | None = None
    choices: str | None = None
    context: str | None = None
    cluster: str | None = None
    id: str | None = None
    indices: bool = False


@dataclass(frozen=True)
class ChatFrame:
    """The text that a chat template writes around a question and in front of its answer.

    Attributes:
        before: text in front of the question: BOS, the system prompt, the opening of the user's turn.
        after: text between question and answer, which ends with the opening of the assistant's turn.
        space: spaces between this opening and the answer. They belong to the answer's first token, because
            many tokenizers read a word with the space in front of it.
    """

    before: str
    after: str
    space: str = ""


def split_counts(train: Sequence[object], validation: Sequence[object], test: Sequence[object]) -> str:
    """Return the number of rows of each split as text."""
    return f"{len(train)} train, {len(validation)} validation, {len(test)} test rows"


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names separated by commas, at most the first `most`."""
    more = f", .. ({len(names)})" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@dataclass(frozen=True, repr=False)
class Task:
    """A classification task.

    Attributes:
        name: name of the task.
        labels: the answers, in class order; each must be one token (`data.answer_token_ids`), unless whole
            texts are scored.
        train, validation, test: the splits; `validation` may be empty (see `data.loader`).
        notes: facts to report with a result (truncation, re-split, corrected labels).
        names: the user's names of the classes, in class order: the labels, or what they stand for if they are
            letters. Empty if each row lists its own options, which is the default if the labels are A, B, ...
        columns: the columns read, if the rows are a user's own.
        chat: the text around each question, if questions go through a chat template.
    """

    name: str
    labels: tuple[str, ...]
    train: Sequence[Example] = ()
    validation: Sequence[Example] = ()
    test: Sequence[Example] = ()
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    columns: Columns | None = None
    chat: ChatFrame | None = None

    def __repr__(self) -> str:
        return f"Task {self.name!r}: {self.counts}; answers {listed(self.names or self.labels)}"

    @property
    def counts(self) -> str:
        """The number of rows of each split, as text."""
        return split_counts(self.train, self.validation, self.test)

    def each_row(self, change: Callable[[Example], Example], **fields: Any) -> Self:
        """Return the task with `change` applied to every row of every split, and other fields replaced."""
        for name in ("train", "validation", "test"):
            fields[name] = tuple(map(change, getattr(self, name)))
        return replace(self, **fields)

    def __post_init__(self) -> None:
        if not self.names and tuple(self.labels) != LETTERS[: len(self.labels)]:
            object.__setattr__(self, "names", tuple(self.labels))
        if self.names and len(self.names) != len(self.labels):
            raise DataError(
                f"Task {self.name!r} has {len(self.labels)} labels but {len(self.names)} names: give one "
                "name per label."
            )


WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""Integer types, allowed for labels."""


class TokenRows(NamedTuple):
    """The inputs of a language model, as in `Batch`: `B x T` each."""

    input_ids: Tensor
    attention_mask: Tensor
    segments: Tensor | None = None

    def repeat(self, copies: int) -> "TokenRows":
        """Return all rows repeated `copies` times."""
        segments = None if self.segments is None else self.segments.repeat(copies, 1)
        return TokenRows(self.input_ids.repeat(copies, 1), self.attention_mask.repeat(copies, 1), segments)

    def chosen(self, row: int, width: int) -> "TokenRows":
        """Return the last `width` tokens of one row."""
        one = slice(row, row + 1)
        segments = None if self.segments is None else self.segments[one, -width:]
        return TokenRows(self.input_ids[one, -width:], self.attention_mask[one, -width:], segments)


@dataclass(frozen=True)
class Batch:
    """Left-padded token ids of B questions, T tokens wide.

    Attributes:
        input_ids: long, `B x T`.
        attention_mask: bool, `B x T`, False on padding, which is on the left.
        answer_ids: long, `C`: the token of each class; empty if whole texts are scored.
        labels: long, `B`, or None if the answers are unknown.
        ids: the B stable row identifiers.
        segments: long, `B x T`, or None for one text per row: 0 on the shared beginning of a row, c on its
            c-th continuation, whose tokens attend only to the beginning and their own segment.
        past: `bara_pyro.fast.prefix.Prefix`, or None: tokens read before, which these rows continue.
        counts: number of positions at the right end of each row whose outputs are read; empty for plain
            questions, of which the last position is read.
    """

    input_ids: Tensor
    attention_mask: Tensor
    answer_ids: Tensor
    labels: Tensor | None = None
    ids: tuple[str, ...] = ()
    segments: Tensor | None = None
    past: Any = None
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.input_ids.dim() != 2 or not self.input_ids.numel():
            raise DataError(
                f"input_ids has shape {tuple(self.input_ids.shape)}: give rows x tokens, at least 1 x 1."
            )
        if self.attention_mask.shape != self.input_ids.shape or self.attention_mask.dtype != torch.bool:
            raise DataError(
                f"attention_mask is {self.attention_mask.dtype} of shape {tuple(self.attention_mask.shape)}: "
                f"give bool of shape {tuple(self.input_ids.shape)}, like input_ids."
            )
        for name, values in (("ids", self.ids), ("labels", self.labels)):
            if values is not None and len(values) not in (len(self.input_ids), 0 if name == "ids" else -1):
                raise DataError(
                    f"There are {len(self.input_ids)} rows and {len(values)} {name}: give one per row."
                )
        if self.labels is not None and (self.labels.dim() != 1 or self.labels.dtype not in WHOLE):
            raise DataError(
                f"labels is {self.labels.dtype} of shape {tuple(self.labels.shape)}: give the class of each "
                f"row, long of shape ({len(self.input_ids)},)."
            )
        # Only on the CPU, where batches are made: on an accelerator the check would wait for the device.
        if self.attention_mask.device.type == "cpu":
            ends = bool(self.attention_mask[:, -1].all())
            if not ends or (self.attention_mask[:, :-1] & ~self.attention_mask[:, 1:]).any():
                found = "a row has padding between tokens" if ends else "its last column has padding"
                raise DataError(f"A batch must be padded on the left, but {found}: move it to the left.")
        if self.answer_ids.device.type == "cpu":
            self._check_answers()

    def _check_answers(self) -> None:
        if self.answer_ids.dim() == 1 and not len(self.answer_ids):
            return  # whole texts are scored
        if self.answer_ids.dim() != 1 or int(self.answer_ids.min()) < 0:
            raise DataError(f"answer_ids is {self.answer_ids.tolist()}: give the token of each class.")
        if self.labels is not None and self.labels.device.type == "cpu":
            low, high = int(self.labels.min()), int(self.labels.max())
            if low < 0 or high >= len(self.answer_ids):
                raise DataError(
                    f"There are {len(self.answer_ids)} classes and a label {low if low < 0 else high}: count "
                    "from 0, and give labels=None if the answers are unknown."
                )

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def last(self, width: int, past: Any) -> Self:
        """Return the last `width` tokens of each row; `past` holds the others, which were read before."""
        ids, mask = self.input_ids[:, -width:], self.attention_mask[:, -width:]
        return replace(self, input_ids=ids, attention_mask=mask, past=past)

    @property
    def positions(self) -> int:
        """Number of positions in all rows whose outputs are read."""
        return sum(self.asked)

    @property
    def asked(self) -> tuple[int, ...]:
        """Number of positions at the right end of each row whose outputs are read: 1 for a plain question."""
        return self.counts or (1,) * len(self)

    def unlabelled(self) -> Self:
        """Return the same rows without their labels."""
        return replace(self, labels=None)

    def questions(self, rows: slice) -> Self:
        """Return some of the rows without their labels, cut to the longest of them."""
        mask = self.attention_mask[rows]
        width = int(mask.sum(-1).max())
        return replace(
            self,
            input_ids=self.input_ids[rows, -width:],
            attention_mask=mask[:, -width:],
            labels=None,
            ids=self.ids[rows],
            segments=None if self.segments is None else self.segments[rows, -width:],
            counts=self.counts[rows],
        )

    def to(self, device: torch.device | str) -> Self:
        """Return a copy of the batch with its tensors on `device`."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)


def pad_left(fill: int, rows: Sequence[Sequence[int]]) -> Tensor:
    """Return rows of integers as one tensor, padded on the left."""
    width = max(map(len, rows))
    return torch.tensor([[fill] * (width - len(row)) + list(row) for row in rows])

"""What every data source turns into: `Example` (a row), `Task` (named splits), `Batch` (tensors)."""

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bara_pyro.errors import DataError

LETTERS = tuple(string.ascii_uppercase)


@dataclass(frozen=True)
class Example:
    """One question with a closed set of answers.

    Attributes:
        id: stable identifier, unique within its task; results are stored under it.
        question: the text that must reach the model whole (question, options, "Answer:").
        label: index of the right answer in `Task.labels`, or -1 where it is not known.
        context: text put before the question (a passage, an article); cut first where space is short.
        truth: `p(answer | question)` over `Task.labels`, where the world that made the row knows it.
        options: what its source calls each of its options, where every row lists options of its own.
    """

    id: str
    question: str
    label: int = -1
    context: str = ""
    truth: tuple[float, ...] | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Columns:
    """Which columns of a user's own rows hold what; None where there is no such column."""

    text: str
    label: str | None = None
    choices: str | None = None
    context: str | None = None


@dataclass(frozen=True)
class Task:
    """A classification task over single-token answers.

    Attributes:
        name: the name it is known under.
        labels: the answer strings, in class order; each must be one token (`data.encode.answer_token_ids`).
        train, validation, test: the splits; `validation` may be empty (see `data.loader`).
        notes: facts worth reporting with a result (truncation, re-split, corrected labels).
        names: what the user calls the classes, in class order: the labels themselves, or what they stand for
            where they are letters. Empty where each row lists options of its own, of which the labels are the
            places; so it is by default where the labels are A, B, ...
        columns: where the task is a user's own rows.
    """

    name: str
    labels: tuple[str, ...]
    train: Sequence[Example] = ()
    validation: Sequence[Example] = ()
    test: Sequence[Example] = ()
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    columns: Columns | None = None

    def __post_init__(self) -> None:
        if not self.names and tuple(self.labels) != LETTERS[: len(self.labels)]:
            object.__setattr__(self, "names", tuple(self.labels))
        if self.names and len(self.names) != len(self.labels):
            raise DataError(
                f"Task {self.name!r} has {len(self.labels)} labels but {len(self.names)} names of classes."
            )


@dataclass(frozen=True)
class Batch:
    """Left-padded token ids of B questions, T tokens wide.

    Attributes:
        input_ids: long, `B x T`.
        attention_mask: bool, `B x T`, False on padding (always on the left, so the last column is real).
        answer_ids: long, `C`: the token of each class.
        labels: long, `B`, or None where the answers are not known.
        ids: the B stable row identifiers.
    """

    input_ids: Tensor
    attention_mask: Tensor
    answer_ids: Tensor
    labels: Tensor | None = None
    ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # On the CPU only, where batches are made: on an accelerator the look would wait for the device.
        if self.attention_mask.device.type == "cpu" and not self.attention_mask[:, -1].all():
            raise DataError("A batch must be padded on the left: its last column holds padding.")

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def to(self, device: torch.device | str) -> "Batch":
        """Return the same batch with its tensors on `device`."""
        labels = None if self.labels is None else self.labels.to(device)
        return replace(
            self,
            input_ids=self.input_ids.to(device),
            attention_mask=self.attention_mask.to(device),
            answer_ids=self.answer_ids.to(device),
            labels=labels,
        )

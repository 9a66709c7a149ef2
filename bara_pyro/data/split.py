"""A split as token ids, and left-padded batches of it."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from bara_pyro.data.texts import Texts, pad_left, with_texts
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, DataError


class EncodedRows(Protocol):
    """Rows as token ids, of any kind, that a model can be trained on."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> Sequence[int]:
        """Number of tokens of each row in a batch."""
        ...

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits over the content of the rows."""
        ...

    def batch(self, rows: Sequence[int], answer_ids: Tensor) -> Batch:
        """Return the rows at these indices as a left-padded batch, as wide as its longest row."""
        ...


def collate_ids(
    token_ids: Sequence[Sequence[int]],
    labels: Sequence[int],
    ids: Sequence[str],
    answer_ids: Tensor,
    pad_id: int,
) -> Batch:
    """Pad B rows on the left to the longest; the labels are None if any of them is unknown (-1)."""
    if not token_ids:
        raise ConfigError("A batch needs at least one row.")
    for row, tokens in zip(ids, token_ids, strict=True):
        if not tokens:
            raise DataError(f"The row {row!r} has no tokens: give it a text, or leave it out.")
    mask = pad_left(0, [[1] * len(tokens) for tokens in token_ids]).bool()
    known = None if min(labels) < 0 else torch.tensor(labels)
    return Batch(pad_left(pad_id, token_ids), mask, answer_ids, known, tuple(ids))


@dataclass(frozen=True, repr=False)
class EncodedSplit:
    """The prompts of a split as token ids.

    Attributes:
        token_ids: the ids of each row, unpadded.
        labels: the class of each row, -1 if unknown.
        ids: the stable identifier of each row.
        pad_id: token to pad batches with; it is masked.
        shortened: identifiers of the rows whose context was cut.
        dropped: identifiers of the rows left out because the question alone was too long.
        unknown: percentage of tokens that are unknown to the tokenizer.
        texts: if whole texts are scored: the tokens of the C answers of each row, empty for an answer that
            the row does not offer. Else an empty tuple.
        offered: number of options that each row lists, 0 if it lists none; empty if no row lists any.
    """

    token_ids: tuple[list[int], ...]
    labels: tuple[int, ...]
    ids: tuple[str, ...]
    pad_id: int
    shortened: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    unknown: float = 0.0
    texts: tuple[Texts, ...] = ()
    offered: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"EncodedSplit of {len(self.ids)} rows, {sum(map(len, self.token_ids))} tokens"

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each row in a batch, including the texts of its answers."""
        behind = [sum(max(0, len(text) - 1) for text in texts) for texts in self.texts] or [0] * len(self)
        return [len(prompt) + more for prompt, more in zip(self.token_ids, behind, strict=True)]

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits over the tokens, labels and identifiers of the rows."""
        text = json.dumps([self.token_ids, self.labels, self.ids, *([self.texts] if self.texts else [])])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def take(self, rows: Sequence[int]) -> "EncodedSplit":
        """Return the rows at these indices, in this order, as a new split."""
        return replace(
            self,
            token_ids=tuple(self.token_ids[row] for row in rows),
            labels=tuple(self.labels[row] for row in rows),
            ids=tuple(self.ids[row] for row in rows),
            texts=tuple(self.texts[row] for row in rows) if self.texts else (),
            offered=tuple(self.offered[row] for row in rows) if self.offered else (),
        )

    def batch(self, rows: Sequence[int], answer_ids: Tensor) -> Batch:
        """Return the rows at these indices as a left-padded batch, as wide as its longest row."""
        part = self.take(rows)
        plain = collate_ids(part.token_ids, part.labels, part.ids, answer_ids, self.pad_id)
        return with_texts(plain, part.token_ids, part.texts) if part.texts else plain


def first_rows(split: EncodedSplit, count: int) -> EncodedSplit:
    """Return the first rows of a split, or all if there are fewer.

    Raises:
        ConfigError: `count` is below 1.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.data import first_rows
        >>> split = bp.encode(bp.load_task("micro-wgs").test, bp.load_backbone("microworld").tokenizer)
        >>> len(first_rows(split, 256)), len(first_rows(split, 10**6)) == len(split)
        (256, True)
    """
    if count < 1:
        raise ConfigError(f"The number of rows is {count}: choose 1 or more.")
    return split.take(range(min(count, len(split))))

"""A split as token ids, and left-padded batches of it in the orders of evaluation and of training."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from torch import Tensor

from bara_pyro.data.replies import EncodedReplies
from bara_pyro.data.types import Batch, pad_left
from bara_pyro.errors import ConfigError, DataError

Texts = Sequence[Sequence[int]]
"""The tokens of the C answers of a row; empty for an answer that the row does not offer."""


@dataclass(frozen=True, kw_only=True)
class TextBatch(Batch):
    """Questions whose answers are whole texts; all texts of a row follow its prompt.

        [padding] prompt  text 1 without its last token  text 2 without its last token  ..

    A token of a text attends only to the prompt and its own text (`segments`). The prompt is thus read once,
    its gates are drawn once, and each text is scored as if it were the only one. The last token of a text is
    never an input. Outputs are read at the prompt's last position and at all positions after it. A row has K
    tokens to score; rows with fewer are padded with tokens of owner C.

    Attributes:
        tokens: long, `B x K`: the tokens.
        places: long, `B x K`: the position that predicts each token, counted from the right (0: last column).
        owners: long, `B x K`: the class whose text the token belongs to.
        lengths: long, `B x C`: number of tokens of each text; 0 for an answer that the row does not offer.
    """

    tokens: Tensor
    places: Tensor
    owners: Tensor
    lengths: Tensor

    def questions(self, rows: slice) -> Self:
        """Return some of the rows without their labels, cut to the longest of them."""
        of_questions = {name: getattr(self, name)[rows] for name in ("tokens", "places", "owners", "lengths")}
        return replace(super().questions(rows), **of_questions)


def with_texts(batch: Batch, prompts: Sequence[Sequence[int]], texts: Sequence[Texts]) -> TextBatch:
    """Return a batch of these B prompts, each followed by the texts of its row.

    Each row has the same number C of texts, at least two of which are not empty.
    """
    pad = int(batch.input_ids[0, 0])  # any token will do: it is masked
    read, segments, tokens, places, owners = zip(*map(_lay_out, prompts, texts), strict=True)
    return TextBatch(
        input_ids=pad_left(pad, read),
        attention_mask=pad_left(0, [[1] * len(row) for row in read]).bool(),
        answer_ids=batch.answer_ids,
        labels=batch.labels,
        ids=batch.ids,
        segments=pad_left(0, segments),
        tokens=pad_left(0, tokens),
        places=pad_left(0, places),
        owners=pad_left(len(texts[0]), owners),
        lengths=torch.tensor([[len(text) for text in of_row] for of_row in texts]),
        counts=tuple(1 + len(row) - len(prompt) for row, prompt in zip(read, prompts, strict=True)),
    )


def _lay_out(prompt: Sequence[int], texts: Texts) -> tuple[list[int], ...]:
    """Return the inputs of a row with their segments, and the tokens to score, their places and owners."""
    read, segments = list(prompt), [0] * len(prompt)
    tokens: list[int] = []
    columns: list[int] = []
    owners: list[int] = []
    for owner, text in enumerate(texts):
        tokens += text
        owners += [owner] * len(text)
        if text:
            columns += [len(prompt) - 1, *range(len(read), len(read) + len(text) - 1)]
        read += text[:-1]
        segments += [owner + 1] * (len(text) - 1)
    return read, segments, tokens, [len(read) - 1 - column for column in columns], owners


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


EncodedRows = EncodedSplit | EncodedReplies
"""Rows as token ids that a model can be trained on."""


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


def batches(
    split: EncodedRows, answer_ids: Tensor, batch_size: int, *, by_length: bool = False
) -> Iterator[Batch]:
    """Yield every row once, always in the same order; the last batch may be smaller.

    Args:
        split: rows from `encode` or `encode_replies`.
        answer_ids: token of each class, long, `C`; see `answer_token_ids`.
        batch_size: rows per batch.
        by_length: sort rows by length (less padding, faster); match results to rows by `Batch.ids`.

    Raises:
        ConfigError: `batch_size` is not positive.

    Examples:
        >>> import bara_pyro as bp
        >>> backbone = bp.load_backbone("microworld")
        >>> task = bp.load_task("micro-wgs")
        >>> split = bp.encode(task.train[:10], backbone.tokenizer)
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> [len(batch) for batch in bp.batches(split, answers, batch_size=4)]
        [4, 4, 2]
    """
    _check_batch_size(batch_size)
    order = list(range(len(split)))
    if by_length:
        order.sort(key=split.lengths.__getitem__)
    for start in range(0, len(order), batch_size):
        yield split.batch(order[start : start + batch_size], answer_ids)


def first_batches(all_batches: Iterable[Batch], rows: int) -> Iterator[Batch]:
    """Yield batches until they hold this many rows together."""
    count = 0
    for batch in all_batches:
        yield batch
        count += len(batch)
        if count >= rows:
            return


def training_batches(num_rows: int, batch_size: int, seed: int, step: int) -> list[int]:
    """Return the row numbers of training batch number `step` (from 0).

    The rows are an endless stream of epochs, each a seeded permutation of all rows, cut into batches; a batch
    may span two epochs, so every batch is full and every row is seen equally often. Each step is computed
    independently of earlier ones, so a resumed run needs only its step.

    Args:
        num_rows: number of training rows.
        batch_size: rows per batch.
        seed: the run's seed, for the permutations.
        step: number of the batch.

    Returns:
        The numbers of `batch_size` rows, from 0 to `num_rows - 1`, for `EncodedSplit.batch`.

    Raises:
        ConfigError: there are no rows, `batch_size` is not positive, or seed or step is negative.

    Examples:
        >>> import bara_pyro as bp
        >>> rows = [bp.training_batches(6, 4, seed=0, step=step) for step in range(3)]
        >>> [len(batch) for batch in rows], sorted(rows[0] + rows[1] + rows[2])  # two epochs of six rows
        ([4, 4, 4], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    """
    _check_batch_size(batch_size)
    if num_rows < 1 or step < 0 or seed < 0:
        raise ConfigError(
            f"Training batches need rows, a seed and a step of 0 or more (got {num_rows}, {seed}, {step})."
        )
    places = range(step * batch_size, (step + 1) * batch_size)
    return [int(_epoch_order(num_rows, seed, place // num_rows)[place % num_rows]) for place in places]


@lru_cache(maxsize=8)
def _epoch_order(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(num_rows)


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}: choose 1 or more.")

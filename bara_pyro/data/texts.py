"""Batches of questions whose answers are whole texts: every text of a row behind its prompt, in one row.

    [padding] prompt  text 1 but its last token  text 2 but its last token  ..

A token of a text sees the prompt and its own text alone (`Batch.segments`), so the prompt is read once, its
gates are drawn once, and each text is scored as if it stood there by itself. The last token of a text is
never read. Answers are read at the right end: at the prompt's last position and at all that stand behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from bara_pyro.data.types import Batch

Texts = Sequence[Sequence[int]]
"""The tokens of the C texts that could answer a row; none of one that the row does not offer."""


@dataclass(frozen=True, kw_only=True)
class TextBatch(Batch):
    """Questions, and the tokens of the texts that could answer them.

    A row has K tokens to score; rows with fewer are filled up with tokens of owner C.

    Attributes:
        tokens: long, `B x K`: the tokens.
        places: long, `B x K`: where each is read, counted from the right end (0: the last column).
        owners: long, `B x K`: the class whose text it is part of.
        lengths: long, `B x C`: the number of tokens of each text; 0 of one that the row does not offer.
        counts: number of positions read, a row.
    """

    tokens: Tensor
    places: Tensor
    owners: Tensor
    lengths: Tensor
    counts: tuple[int, ...]

    @property
    def asked(self) -> tuple[int, ...]:
        """The prompt's last position and those of the texts behind it."""
        return self.counts

    def questions(self, rows: slice) -> Self:
        """Return some of the rows without their labels, cut to the longest of them."""
        own = {
            name: getattr(self, name)[rows] for name in ("tokens", "places", "owners", "lengths", "counts")
        }
        return replace(super().questions(rows), **own)


def with_texts(batch: Batch, prompts: Sequence[Sequence[int]], texts: Sequence[Texts]) -> TextBatch:
    """Return a batch of these B prompts with the texts of their rows behind them.

    Each row has the same number C of texts, of which at least two are not empty.
    """
    pad = int(batch.input_ids[0, 0])  # any token will do: it is masked
    rows = list(map(_lay_out, prompts, texts))
    return TextBatch(
        input_ids=pad_left(pad, [row.read for row in rows]),
        attention_mask=pad_left(0, [[1] * len(row.read) for row in rows]).bool(),
        answer_ids=batch.answer_ids,
        labels=batch.labels,
        ids=batch.ids,
        segments=pad_left(0, [row.segments for row in rows]),
        tokens=pad_left(0, [row.tokens for row in rows]),
        places=pad_left(0, [row.places for row in rows]),
        owners=pad_left(len(texts[0]), [row.owners for row in rows]),
        lengths=torch.tensor([[len(text) for text in own] for own in texts]),
        counts=tuple(1 + len(row.read) - len(prompt) for row, prompt in zip(rows, prompts, strict=True)),
    )


@dataclass(frozen=True)
class _Layout:
    read: list[int]
    segments: list[int]
    tokens: list[int]
    places: list[int]
    owners: list[int]


def _lay_out(prompt: Sequence[int], texts: Texts) -> _Layout:
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
    return _Layout(read, segments, tokens, [len(read) - 1 - column for column in columns], owners)


def pad_left(fill: int, rows: Sequence[Sequence[int]]) -> Tensor:
    """Return rows of integers as one tensor, filled up on the left."""
    width = max(map(len, rows))
    return torch.tensor([[fill] * (width - len(row)) + list(row) for row in rows])

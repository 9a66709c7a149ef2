"""Batches of questions whose answers are whole texts; all texts of a row follow its prompt.

    [padding] prompt  text 1 without its last token  text 2 without its last token  ..

A token of a text attends only to the prompt and its own text (`Batch.segments`). The prompt is thus read
once, its gates are drawn once, and each text is scored as if it were the only one. The last token of a text
is never an input. Outputs are read at the prompt's last position and at all positions after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from bara_pyro.data.types import Batch, pad_left

Texts = Sequence[Sequence[int]]
"""The tokens of the C answers of a row; empty for an answer that the row does not offer."""


@dataclass(frozen=True, kw_only=True)
class TextBatch(Batch):
    """Questions, and the tokens of their possible answers.

    The prompt's last position and those of its texts are read. A row has K tokens to score; rows with
    fewer are padded with tokens of owner C.

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

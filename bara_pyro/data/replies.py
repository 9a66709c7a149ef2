"""Prompts with replies as left-padded batches, with one or several replies per row.

    [padding] prompt reply-without-last-token                              one reply per row
    [padding] prompt reply-without-last-token prompt reply-without-last..  several (packing)

Packed replies do not attend to each other. Each scored position predicts the next token; positions of padding
and of a prompt, except its last, are not scored.
"""

import hashlib
import json
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from bara_pyro.data.types import Batch, pad_left
from bara_pyro.errors import ConfigError, DataError


@dataclass(frozen=True)
class EncodedReply:
    """A prompt and its reply as token ids; neither may be empty.

    Attributes:
        prompt: the prompt.
        reply: the reply to learn, with the token that ends it.
        id: a stable identifier.
    """

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    id: str

    def __post_init__(self) -> None:
        if not self.prompt or not self.reply:
            part = "reply" if self.prompt else "prompt"
            raise DataError(f"The row {self.id!r} has no tokens in its {part}: leave it out.")

    def __len__(self) -> int:
        return len(self.prompt) + len(self.reply) - 1


@dataclass(frozen=True, kw_only=True)
class ReplyBatch(Batch):
    """A batch of prompts and replies; its `labels` are None.

    A row is read from its first scored position to its end; W is the largest of these numbers (`counts`).

    Attributes:
        targets: long, `B x W`: the next token of each of the last W positions.
        scored: bool, `B x W`: which of these positions are scored.
        training: whether the replies are learnt, not predicted.
    """

    targets: Tensor
    scored: Tensor
    training: bool = True

    @property
    def positions(self) -> int:
        """Number of scored positions in all rows."""
        return int(self.scored.sum())

    def unlabelled(self) -> Self:
        """Return the same rows for prediction instead of training."""
        return replace(self, training=False)

    def questions(self, rows: slice) -> Self:
        """Return some of the rows for prediction, cut to the longest of them."""
        width = max(self.counts[rows])
        return replace(
            super().questions(rows),
            targets=self.targets[rows, -width:],
            scored=self.scored[rows, -width:],
            training=False,
        )


def reply_batch(rows: Sequence[Sequence[EncodedReply]], pad_id: int = 0) -> ReplyBatch:
    """Return B rows as a batch; a `ConfigError` if there are no rows, or a row without a reply.

    Packed replies of a row do not attend to each other. Padding is masked.
    """
    if not rows or not all(rows):
        raise ConfigError("A batch needs at least one row, and each row at least one reply.")
    tokens = [[*(t for r in row for t in (*r.prompt, *r.reply[:-1]))] for row in rows]
    segments = [[number for number, r in enumerate(row, 1) for _ in range(len(r))] for row in rows]
    targets = [[t for r in row for t in (*[0] * (len(r.prompt) - 1), *r.reply)] for row in rows]
    scored = [[s for r in row for s in (*[0] * (len(r.prompt) - 1), *[1] * len(r.reply))] for row in rows]
    counts = tuple(len(mask) - mask.index(1) for mask in scored)
    width = max(counts)
    packed = any(len(row) > 1 for row in rows)
    return ReplyBatch(
        input_ids=pad_left(pad_id, tokens),
        attention_mask=pad_left(0, [[1] * len(row) for row in tokens]).bool(),
        answer_ids=torch.empty(0, dtype=torch.long),
        ids=tuple("+".join(r.id for r in row) for row in rows),
        segments=pad_left(0, segments) if packed else None,
        targets=pad_left(0, targets)[:, -width:],
        scored=pad_left(0, scored)[:, -width:].bool(),
        counts=counts,
    )


@dataclass(frozen=True, repr=False)
class EncodedReplies:
    """Rows of replies as tokens.

    Attributes:
        rows: the replies of each row: one, or several if they are packed.
        pad_id: token to pad batches with.
        shortened: identifiers of the replies that were cut at the end.
        dropped: identifiers of the rows left out, because the prompt left no room for a reply.
    """

    rows: tuple[tuple[EncodedReply, ...], ...]
    pad_id: int = 0
    shortened: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"EncodedReplies of {len(self.rows)} rows, {self.tokens} tokens to learn"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> tuple[str, ...]:
        """The identifiers of the rows."""
        return tuple("+".join(reply.id for reply in row) for row in self.rows)

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each row in a batch."""
        return [sum(map(len, row)) for row in self.rows]

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits over the tokens and identifiers of the rows."""
        digest = hashlib.sha256()
        for row in self.rows:
            tokens = json.dumps([(reply.prompt, reply.reply, reply.id) for reply in row])
            digest.update(f"{tokens}\n".encode())
        return digest.hexdigest()[:16]

    @property
    def counts(self) -> list[int]:
        """Number of reply tokens in each row."""
        return [sum(len(reply.reply) for reply in row) for row in self.rows]

    @property
    def tokens(self) -> int:
        """Number of reply tokens in all rows."""
        return sum(self.counts)

    def batch(self, rows: Sequence[int], answer_ids: Tensor | None = None) -> ReplyBatch:
        """Return the rows at these indices as a left-padded batch, as wide as its longest row.

        `answer_ids` are ignored, because replies use the whole vocabulary.
        """
        return reply_batch([self.rows[row] for row in rows], self.pad_id)

    def packed(self, length: int) -> Self:
        """Return the same replies packed into fewer rows of at most `length` tokens each.

        Best-fit packing; replies within a row keep their order, and a longer reply has a row for itself. The
        total loss stays the same, and its mean is then over packed rows.
        """
        replies = [reply for row in self.rows for reply in row]
        return replace(self, rows=tuple(tuple(replies[i] for i in row) for row in _fitted(replies, length)))


def _fitted(replies: Sequence[EncodedReply], length: int) -> list[list[int]]:
    """Return the indices of the replies of each packed row: best fit, the longest first."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # room and row, in order
    for i in sorted(range(len(replies)), key=lambda i: (-len(replies[i]), i)):
        need = len(replies[i])
        at = bisect_left(free, (need, 0))
        room, row = free.pop(at) if at < len(free) else (length, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(i)
        insort(free, (room - need, row))
    return sorted(map(sorted, rows))

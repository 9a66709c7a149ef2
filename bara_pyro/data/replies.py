"""Prompts with replies, every token of which is learnt: batches padded on the left, several replies a row.

    [padding] prompt reply-but-its-last-token                      one reply a row
    [padding] prompt reply-but-its-last-token  prompt reply-but..  several, unseen by each other (packing)

A position is asked for the token behind it. Those of a prompt (but its last) and of padding are not asked.
"""

import hashlib
import json
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from bara_pyro.data.texts import pad_left
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, DataError


@dataclass(frozen=True)
class EncodedReply:
    """A prompt and its reply as token ids, neither of them empty.

    Attributes:
        prompt: what is given.
        reply: what is learnt, with the token that ends it.
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
    """Prompts and replies; `labels` are None: what is asked for are tokens.

    Attributes:
        targets: long, `B x W`: the token behind each of the last W positions.
        scored: bool, `B x W`: which of these are asked.
        counts: how many positions at the right end of each row hold those that are asked; W the largest.
        training: whether the replies are to be learnt, not predicted.
    """

    targets: Tensor
    scored: Tensor
    counts: tuple[int, ...]
    training: bool = True

    @property
    def positions(self) -> int:
        """How many positions of all rows are asked for a token."""
        return int(self.scored.sum())

    @property
    def asked(self) -> tuple[int, ...]:
        """How many positions at the right end of each row are read."""
        return self.counts

    def unlabelled(self) -> Self:
        """Return the same rows, whose replies are not to be learnt."""
        return replace(self, training=False)

    def questions(self, rows: slice) -> Self:
        """Return some of the rows, to be scored, cut to the longest of them."""
        counts = self.counts[rows]
        return replace(
            super().questions(rows),
            targets=self.targets[rows, -max(counts) :],
            scored=self.scored[rows, -max(counts) :],
            counts=counts,
            training=False,
        )


def reply_batch(rows: Sequence[Sequence[EncodedReply]], pad_id: int = 0) -> ReplyBatch:
    """Return B rows as a batch.

    Args:
        rows: of each row the replies that stand in it, in a row of one or several; those of a packed row do
            not see each other, and each is read as if it stood there alone.
        pad_id: what rows are padded with (masked, so its meaning does not matter).

    Raises:
        ConfigError: there is no row, or one without a reply.
    """
    if not rows or not all(rows):
        raise ConfigError("A batch needs at least one row, and each row at least one reply.")
    tokens = [[*(t for r in row for t in (*r.prompt, *r.reply[:-1]))] for row in rows]
    segments = [[number for number, r in enumerate(row, 1) for _ in range(len(r))] for row in rows]
    targets = [[t for r in row for t in (*[0] * (len(r.prompt) - 1), *r.reply)] for row in rows]
    scored = [[s for r in row for s in (*[0] * (len(r.prompt) - 1), *[1] * len(r.reply))] for row in rows]
    counts = tuple(len(own) - own.index(1) for own in scored)
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


class RowsDigest:
    """A fingerprint of rows of replies that are seen one at a time."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, row: Sequence[EncodedReply]) -> None:
        """See the next row."""
        tokens = json.dumps([(reply.prompt, reply.reply, reply.id) for reply in row])
        self._hash.update(f"{tokens}\n".encode())

    @property
    def digits(self) -> str:
        """Sixteen hexadecimal digits over the tokens and identifiers of the rows seen, in their order."""
        return self._hash.hexdigest()[:16]


@dataclass(frozen=True, repr=False)
class EncodedReplies:
    """Rows of replies, made once and visited many times.

    Attributes:
        rows: what stands in each row: one reply, or several where they were packed.
        pad_id: what batches are padded with.
        shortened: identifiers of the replies that were cut at their end.
        dropped: of those left out, because no token of the reply had room behind the prompt.
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
        """Number of tokens that each row has in a batch."""
        return [sum(map(len, row)) for row in self.rows]

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits over the tokens and identifiers of the rows."""
        digest = RowsDigest()
        for row in self.rows:
            digest.add(row)
        return digest.digits

    @property
    def counts(self) -> list[int]:
        """Number of tokens that are learnt in each row."""
        return [sum(len(reply.reply) for reply in row) for row in self.rows]

    @property
    def tokens(self) -> int:
        """Number of tokens that are learnt, of all replies together."""
        return sum(self.counts)

    def batch(self, rows: Sequence[int], answer_ids: Tensor | None = None) -> ReplyBatch:
        """Return the rows at these places as a left-padded batch, as wide as its longest row.

        Replies are of the whole vocabulary: `answer_ids` are not looked at.
        """
        return reply_batch([self.rows[row] for row in rows], self.pad_id)

    def packed(self, length: int) -> Self:
        """Return the same replies in fewer rows, of at most `length` tokens each.

        A loss is then the mean over such rows; that of all rows together is the same. A reply that is longer
        stands alone. Each goes where least room is left, and those of a row keep their order.
        """
        replies = [reply for row in self.rows for reply in row]
        return replace(self, rows=tuple(tuple(replies[i] for i in row) for row in _fitted(replies, length)))


def _fitted(replies: Sequence[EncodedReply], length: int) -> list[list[int]]:
    """Return which replies stand together: best fit, the longest first."""
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

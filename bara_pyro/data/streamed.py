"""Replies that are tokenised when a batch needs them; only a few integers per row are kept in memory."""

from array import array
from collections.abc import Callable, Sequence

from torch import Tensor

from bara_pyro.data.conversations import Conversation, ReplyEncoder
from bara_pyro.data.replies import EncodedReply, ReplyBatch, RowsDigest, reply_batch
from bara_pyro.data.tokens import pad_id
from bara_pyro.errors import DataError


class StreamedReplies:
    """The same rows and batches as `encode_replies` returns, without keeping their tokens.

    All rows are read once at the beginning, because the evidence lower bound needs their number and the run
    their fingerprint. Training visits rows in random order, so `conversations` must allow random access.

    Args:
        conversations: the rows, from `data.stored` or any other sequence that does not change.
        encode: tokenises one conversation.
        on_rows: called during the first reading with the number of rows just read.

    Attributes:
        lengths: number of tokens of each row in a batch.
        counts: number of reply tokens in each row.
        fingerprint: sixteen hexadecimal digits over the tokens and identifiers of the rows.
        pad_id: token to pad batches with.

    Raises:
        DataError: see `encode_replies`.
    """

    def __init__(
        self,
        conversations: Sequence[Conversation],
        encode: ReplyEncoder,
        on_rows: Callable[[int], object] | None = None,
    ) -> None:
        self.pad_id = pad_id(encode.tokenizer)
        self._conversations, self._encode = conversations, encode
        self.lengths, self.counts = array("i"), array("i")
        self._kept, self._cut, self._dropped = array("q"), array("q"), array("q")
        digest = RowsDigest()
        for place, conversation in enumerate(conversations):
            row, cut = encode(conversation)
            if row is None:
                self._dropped.append(place)
            else:
                self._kept.append(place)
                self.lengths.append(len(row))
                self.counts.append(len(row.reply))
                digest.add([row])
            if cut:
                self._cut.append(place)
            if on_rows is not None:
                on_rows(1)
        self.fingerprint = digest.digits

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def ids(self) -> tuple[str, ...]:
        """The identifiers of the rows, read from disk."""
        return self._ids(self._kept)

    @property
    def shortened(self) -> tuple[str, ...]:
        """The identifiers of the replies that were cut at the end."""
        return self._ids(self._cut)

    @property
    def dropped(self) -> tuple[str, ...]:
        """The identifiers of the rows left out, because the prompt left no room for a reply."""
        return self._ids(self._dropped)

    @property
    def tokens(self) -> int:
        """Number of reply tokens in all rows."""
        return sum(self.counts)

    def batch(self, rows: Sequence[int], answer_ids: Tensor | None = None) -> ReplyBatch:
        """Return the rows at these indices as a left-padded batch; see `EncodedReplies.batch`."""
        return reply_batch([[self._row(row)] for row in rows], self.pad_id)

    def _row(self, row: int) -> EncodedReply:
        conversation = self._conversations[self._kept[row]]
        encoded, _ = self._encode(conversation)
        if encoded is None:
            raise DataError(f"The row {conversation.id!r} has changed since it was first read: train again.")
        return encoded

    def _ids(self, places: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._conversations[place].id for place in places)

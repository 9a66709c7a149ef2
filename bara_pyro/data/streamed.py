"""Replies that are tokenised when a batch needs them; kept are a few whole numbers a row."""

from array import array
from collections.abc import Callable, Sequence

from torch import Tensor

from bara_pyro.data.conversations import Conversation, ReplyEncoder
from bara_pyro.data.replies import EncodedReply, ReplyBatch, RowsDigest, reply_batch
from bara_pyro.data.tokens import pad_id
from bara_pyro.errors import DataError


class StreamedReplies:
    """The same rows and batches as `encode_replies` gives, without keeping their tokens.

    All rows are read once to begin with: the number of rows is part of the evidence lower bound, and a run's
    rows are known again by their fingerprint. The order of training visits rows anywhere, so a stream that
    can be read only from its beginning will not do.

    Args:
        conversations: the rows, of `data.stored` or any other sequence that does not change.
        encode: makes tokens of one.
        on_rows: called with the number of rows just read, the first time.

    Attributes:
        lengths: number of tokens that each row has in a batch.
        counts: number of tokens that are learnt in each row.
        fingerprint: sixteen hexadecimal digits over the tokens and identifiers of the rows.
        pad_id: what batches are padded with.

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
        """The identifiers of the rows, read from the disk."""
        return self._ids(self._kept)

    @property
    def shortened(self) -> tuple[str, ...]:
        """The identifiers of the replies that were cut at their end."""
        return self._ids(self._cut)

    @property
    def dropped(self) -> tuple[str, ...]:
        """The identifiers of those left out, because no token of the reply had room behind the prompt."""
        return self._ids(self._dropped)

    @property
    def tokens(self) -> int:
        """Number of tokens that are learnt, of all replies together."""
        return sum(self.counts)

    def batch(self, rows: Sequence[int], answer_ids: Tensor | None = None) -> ReplyBatch:
        """Return the rows at these places as a left-padded batch; see `EncodedReplies.batch`."""
        return reply_batch([[self._row(row)] for row in rows], self.pad_id)

    def _row(self, row: int) -> EncodedReply:
        conversation = self._conversations[self._kept[row]]
        found, _ = self._encode(conversation)
        if found is None:
            raise DataError(f"The row {conversation.id!r} is not what it was when it was first read.")
        return found

    def _ids(self, places: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._conversations[place].id for place in places)

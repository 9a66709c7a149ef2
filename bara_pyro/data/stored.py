"""Check the conversations of a file or of the hub once, and keep them on disk for streaming.

This is not the Arrow file that `datasets` makes of a JSON or CSV file, in which each column has one type, so
that "007" may become 7. Here every row is the same as without streaming.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from bara_pyro.data.conversations import Conversation, ReplyEncoder, each_conversation
from bara_pyro.data.reading import RowsOnDisk, dataset_rows, opened, require_rows, split_rows, write_rows
from bara_pyro.data.replies import EncodedReply, ReplyBatch, RowsDigest, reply_batch
from bara_pyro.data.rows import check_ids
from bara_pyro.data.tables import rows_in
from bara_pyro.data.tokens import pad_id
from bara_pyro.errors import DataError
from bara_pyro.types import Fields

if TYPE_CHECKING:
    import datasets


# Version of the format, part of the names of the files: raise it if rows are stored differently.
FORM = 2


def cache_folder() -> Path:
    """Return the folder of stored conversations, below the cache of `datasets` (HF_DATASETS_CACHE)."""
    import datasets

    return Path(datasets.config.HF_DATASETS_CACHE) / "bara_pyro"


def stored_file(path: Path, split: str = "row") -> RowsOnDisk[Conversation]:
    """Return the rows of a file as `load_conversations` does, kept on disk.

    The stored copy is named by a hash of the file's content, so it is never out of date. Errors are those of
    `load_conversations`; a .json file cannot be read row by row.
    """
    return _stored(_content(path), rows_in(path), str(path), split)


def stored_split(path: Path, split: str, *, spoken: bool = False) -> RowsOnDisk[Conversation]:
    """Return the rows of a file in a hub schema; with `spoken`, plain prompts become a user's messages."""
    return _stored(f"schema/{_content(path)}", split_rows(path), str(path), split, spoken=spoken)


def stored_dataset(
    dataset: "datasets.Dataset", place: str, split: str, *, spoken: bool = False
) -> RowsOnDisk[Conversation]:
    """Return the rows of a dataset of the hub; `place` is its name in errors."""
    return _stored(dataset._fingerprint, dataset_rows(dataset), place, split, spoken=spoken)


def _content(path: Path) -> str:
    """Return a digest of a file's suffix and bytes."""
    with opened(path) as file:
        return path.suffix.lower() + hashlib.file_digest(file, "sha256").hexdigest()


def _stored(
    content: str, rows: Iterable[Fields], place: str, split: str, *, spoken: bool = False
) -> RowsOnDisk[Conversation]:
    """Return stored conversations, storing them first if needed."""
    name = hashlib.sha256(json.dumps([FORM, content, split, spoken]).encode()).hexdigest()[:32]
    path = cache_folder() / f"{name}.arrow"
    if not path.is_file():
        conversations = each_conversation(rows, place, split)
        lines = (_line(row.spoken() if spoken else row) for row in conversations)
        write_rows(path, lines, lambda part: _check(RowsOnDisk(part, _conversation), place))
    return RowsOnDisk(path, _conversation)


def _check(rows: RowsOnDisk[Conversation], place: str) -> None:
    """Raise a `DataError` if there are no rows or two share an id; holds hashes of the ids in memory."""
    if not len(rows):
        require_rows([], place)
    marks = np.fromiter((hash(row.id) for row in rows), np.int64, len(rows))
    values, counts = np.unique(marks, return_counts=True)
    again = np.flatnonzero(np.isin(marks, values[counts > 1]))
    places = again.tolist()
    check_ids([rows[at].id for at in places], place, [at + 1 for at in places])


def _line(row: Conversation) -> bytes:
    return json.dumps([row.prompt, row.reply, row.id, row.options], ensure_ascii=False).encode()


def _conversation(row: bytes) -> Conversation:
    prompt, reply, row_id, options = json.loads(row)
    return Conversation(prompt if isinstance(prompt, str) else tuple(prompt), reply, row_id, options)


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

"""Check the conversations of a file or of the hub once, and keep them on disk for streaming.

This is not the Arrow file that `datasets` makes of a JSON or CSV file, in which each column has one type, so
that "007" may become 7. Here every row is the same as without streaming.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bara_pyro.data.conversations import Conversation, each_conversation
from bara_pyro.data.reading import RowsOnDisk, dataset_rows, require_rows, split_rows, write_rows
from bara_pyro.data.rows import check_ids
from bara_pyro.data.tables import rows_in
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

    The stored copy is named by a hash of the file's content, so it is never out of date.

    Raises:
        DataError: see `load_conversations`; or the file is .json, which cannot be read row by row.
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
    if not path.is_file():
        raise DataError(f"There is no file {path}: check the path.")
    try:
        with path.open("rb") as file:
            return path.suffix.lower() + hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check its permissions.") from error


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

"""Rows kept on disk in a memory-mapped Arrow file, each read when it is accessed."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Generic, Self, TypeVar, overload

import numpy as np
import pyarrow as pa

from bara_pyro.atomic import part_folder, remove_parts
from bara_pyro.errors import DataError

R = TypeVar("R")
PIECE = 1000  # rows written at a time
SCHEMA = pa.schema([("row", pa.binary())])


class RowsOnDisk(Sequence[R], Generic[R]):
    """A sequence of rows in a file that `write_rows` wrote, in any order.

    Args:
        path: the file; if it is replaced later, the old content is still read.
        read: turns the bytes of a row into the row.
    """

    def __init__(self, path: Path, read: Callable[[bytes], R]) -> None:
        self._column = pa.ipc.open_file(pa.memory_map(str(path))).read_all().column("row")
        self._read = read
        self._places = np.arange(len(self._column))

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> R: ...

    @overload
    def __getitem__(self, at: slice) -> "RowsOnDisk[R]": ...

    def __getitem__(self, at: int | slice) -> "R | RowsOnDisk[R]":
        if isinstance(at, slice):
            return self.take(np.arange(len(self))[at])
        return self._read(self._column[int(self._places[at])].as_py())

    def take(self, places: np.ndarray) -> Self:
        """Return the rows at these indices, in this order, without reading them."""
        part = type(self).__new__(type(self))
        part._column, part._read, part._places = self._column, self._read, self._places[places]
        return part


def take(rows: Sequence[R], places: np.ndarray) -> Sequence[R]:
    """Return the rows at these indices, in this order; rows on disk are not read."""
    return rows.take(places) if isinstance(rows, RowsOnDisk) else tuple(rows[place] for place in places)


def write_rows(path: Path, rows: Iterable[bytes], check: Callable[[Path], None]) -> None:
    """Write rows to a file atomically, without holding all of them in memory.

    Args:
        path: the file.
        rows: rows to write.
        check: called with the temporary file before it replaces `path`; an exception keeps the old file.

    Raises:
        DataError: the file cannot be written.
    """
    left = iter(rows)
    try:
        remove_parts(path.parent, path.name)
        with part_folder(path) as place:
            part = place / path.name
            with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
                while piece := list(islice(left, PIECE)):
                    writer.write_batch(pa.record_batch([pa.array(piece, pa.binary())], schema=SCHEMA))
            check(part)
            part.replace(path)
    except OSError as error:
        raise DataError(
            f"Cannot write {path} ({error.strerror or error}): free space, or set the environment variable "
            "HF_DATASETS_CACHE to another folder."
        ) from error

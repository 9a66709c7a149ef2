"""Rows from a JSONL file in a hub schema, and from the hub itself."""

import io
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from bara_pyro.data.cells import unique_keys
from bara_pyro.errors import DataError
from bara_pyro.types import Json
from bara_pyro.untrusted.files import check_name
from bara_pyro.untrusted.schemas import MOST_JSON

if TYPE_CHECKING:
    import datasets

Rows = list[Json]
UTF16 = (b"\xff\xfe", b"\xfe\xff")
MOST_WHOLE = 2**31
"""Bytes of a file that is not read line by line; a line has at most `MOST_JSON`."""
PIECE = 1000  # rows of a `datasets.Dataset` that become dictionaries at a time


def read_split(path: Path) -> Rows:
    """Read a JSONL file in a hub schema through `datasets`; see `split_rows`."""
    return list(split_rows(path))


def split_rows(path: Path) -> Iterator[Json]:
    """Yield the rows of a JSONL file in a hub schema as `datasets` reads them.

    A fresh cache each time: a file that has changed is never answered from an old copy.

    Raises:
        DataError: no such file, an empty file, a line that is no JSON object, or a column of mixed types.
    """
    import datasets

    if not sum(1 for _ in objects_in(path)):  # `datasets` does not say which line it could not read
        require_rows([], path)
    with quiet(), tempfile.TemporaryDirectory() as cache:
        try:
            table = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=cache)
            yield from dataset_rows(table)
        except (datasets.exceptions.DatasetsError, ValueError, TypeError) as error:
            raise DataError(
                f"{path} holds columns that change their type from row to row: {error}."
            ) from error


def read_hub(hub: str, config: str | None, split: str, revision: str | None = None) -> Rows:
    """Read one split from the Hugging Face hub (or from its local cache); see `hub_dataset`."""
    return list(dataset_rows(hub_dataset(hub, config, split, revision)))


def hub_dataset(hub: str, config: str | None, split: str, revision: str | None = None) -> "datasets.Dataset":
    """Return one split from the Hugging Face hub (or from its local cache), its rows left on the disk.

    Raises:
        DataError: the hub cannot be reached, or has no such dataset, config, split or revision.
    """
    import datasets

    try:
        with quiet():
            return datasets.load_dataset(hub, config, split=split, revision=revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        name = f"{hub} ({config})" if config else hub
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise DataError(
            f"The split {split!r} of {name} could not be read from the Hugging Face hub: {reason}; "
            "check the network, or give data_dir (--data-dir), a folder that holds the files."
        ) from error


def dataset_rows(dataset: "datasets.Dataset") -> Iterator[Json]:
    """Yield the rows of a `datasets.Dataset`, of which only some are in memory at a time."""
    for start in range(0, len(dataset), PIECE):
        yield from dataset.select(range(start, min(start + PIECE, len(dataset)))).to_list()


def parse_lines(path: Path) -> Rows:
    """Parse JSON lines; blank lines are skipped. Errors name the line."""
    return require_rows(list(objects_in(path)), path)


def objects_in(path: Path) -> Iterator[Json]:
    """Yield the objects of a file of JSON lines one at a time; see `parse_lines`."""
    for number, ended in enumerate(lines_in(path), start=1):
        line = ended.removesuffix("\n")
        if not line.strip():
            continue
        value = parse_json(line, path, f"line {number}")
        if not isinstance(value, dict):
            raise DataError(f"{path}, line {number} is not a JSON object: {line.strip()[:60]!r}.")
        yield value


def parse_json(text: str, path: Path, place: str = "") -> Any:
    """Parse JSON; raise `DataError` that names the file and the place, or the line where none is given.

    An object with two values of one name is refused: of these the last would be read.
    """
    where = f"{path}{', ' if place else ''}{place}"
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except DataError as error:  # a ValueError, too
        raise DataError(f"{where}: {error}") from None
    except json.JSONDecodeError as error:
        line = place or f"line {error.lineno}"
        each = "; each line must be one JSON object" if path.suffix.lower() == ".jsonl" else ""
        raise DataError(
            f"{path}, {line} is not valid JSON: {error.msg} at column {error.colno}{each}."
        ) from error
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
        raise DataError(f"{where} cannot be read: {reason}.") from error


def text_in(path: Path) -> str:
    """Return the text of a UTF-8 file, or of one in UTF-16 that says so by its first bytes.

    Raises:
        DataError: there is no such file, it has more than `MOST_WHOLE` bytes, or holds something else.
    """
    with _reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_WHOLE:
            raise DataError(
                f"{path} has {size:,} bytes, and at most {MOST_WHOLE:,} are read as a whole: write one row a "
                "line, as .jsonl in UTF-8."
            )
        data = file.read(size)  # as much is allocated as is asked for, whatever is there
        return _decoded(data, "utf-16" if data[:2] in UTF16 else "utf-8-sig", path)


def lines_in(path: Path) -> Iterator[str]:
    """Yield the lines of such a file, each with the line feed that ends it; one in UTF-16 is read whole.

    Raises:
        DataError: as `text_in`, and a line has more than `MOST_JSON` bytes.
    """
    with _reading(path) as file:
        if file.read(2) in UTF16:
            yield from io.StringIO(text_in(path), newline="\n")
            return
        file.seek(0)
        start = number = 0
        while line := file.readline(MOST_JSON + 1):
            number += 1
            if len(line) > MOST_JSON:
                raise DataError(
                    f"{path}, line {number} has more than {MOST_JSON:,} bytes: end each row with a line feed."
                )
            yield _decoded(line, "utf-8" if start else "utf-8-sig", path, start)
            start += len(line)


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file of rows; say which one where that fails, now or later."""
    check_name(path, DataError)
    if not path.is_file():
        raise DataError(f"There is no file {path}.")
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error


def _decoded(data: bytes, encoding: str, path: Path, start: int = 0) -> str:
    """Return what stands at a place of a file as text."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text (byte {start + error.start}): save it as UTF-8 (in Excel: CSV UTF-8)."
        ) from error


def require_rows(rows: Rows, place: Path | str) -> Rows:
    """Return the rows; raise `DataError` where there are none."""
    if not rows:
        raise DataError(f"{place} is empty: give it at least one row.")
    return rows


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the progress bars, log lines and warnings of `datasets` and the hub client, and put them back."""
    import datasets

    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    bars = not datasets.are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        datasets.disable_progress_bars()
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
            if bars:
                datasets.enable_progress_bars()

"""Rows from a JSONL file in a hub schema, and from the hub itself."""

import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bara_pyro.errors import DataError
from bara_pyro.types import Json

Rows = list[Json]


def read_split(path: Path) -> Rows:
    """Read a JSONL file in a hub schema through `datasets`.

    A fresh cache each time: a file that has changed is never answered from an old copy.

    Raises:
        DataError: no such file, an empty file, a line that is no JSON object, or a column of mixed types.
    """
    import datasets

    parse_lines(path)  # `datasets` does not say which line it could not read
    with quiet(), tempfile.TemporaryDirectory() as cache:
        try:
            table = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=cache)
            return list(table.to_list())
        except (datasets.exceptions.DatasetsError, ValueError, TypeError) as error:
            raise DataError(
                f"{path} holds columns that change their type from row to row: {error}."
            ) from error


def read_hub(hub: str, config: str | None, split: str, revision: str | None = None) -> Rows:
    """Read one split from the Hugging Face hub (or from its local cache).

    Raises:
        DataError: the hub cannot be reached, or has no such dataset, config, split or revision.
    """
    import datasets

    try:
        with quiet():
            return list(datasets.load_dataset(hub, config, split=split, revision=revision).to_list())
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        name = f"{hub} ({config})" if config else hub
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise DataError(
            f"The split {split!r} of {name} could not be read from the Hugging Face hub: {reason}; "
            "check the network, or pass --data-dir with a folder that holds the files."
        ) from error


def parse_lines(path: Path) -> Rows:
    """Parse JSON lines; blank lines are skipped. Errors name the line."""
    rows: Rows = []
    for number, line in enumerate(text_in(path).split("\n"), start=1):
        if not line.strip():
            continue
        value = parse_json(line, path, f"line {number}")
        if not isinstance(value, dict):
            raise DataError(f"{path}, line {number} is not a JSON object: {line.strip()[:60]!r}.")
        rows.append(value)
    return some(rows, path)


def parse_json(text: str, path: Path, place: str = "") -> Any:
    """Parse JSON; raise `DataError` that names the file and the place, or the line where none is given."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = place or f"line {error.lineno}"
        raise DataError(f"{path}, {where} is not valid JSON: {error.msg} at column {error.colno}.") from error
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
        raise DataError(f"{path}{', ' if place else ''}{place} cannot be read: {reason}.") from error


def text_in(path: Path) -> str:
    """Return the text of a UTF-8 file, or of one in UTF-16 that says so by its first bytes.

    Raises:
        DataError: there is no such file, or it holds something else.
    """
    if not path.is_file():
        raise DataError(f"There is no file {path}.")
    try:
        content = path.read_bytes()
        return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error


def some(rows: Rows, place: Path | str) -> Rows:
    """Return the rows; raise `DataError` where there are none."""
    if not rows:
        raise DataError(f"{place} is empty: a split needs at least one row.")
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

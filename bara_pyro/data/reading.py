"""Rows from a JSONL file in a hub schema, from the hub itself, or from a user's own file."""

import csv
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bara_pyro.errors import DataError

Rows = list[dict[str, Any]]


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


def read_file(path: Path) -> Rows:
    """Read a user's .jsonl, .json (a list of objects) or .csv file.

    By the standard library, because its readers leave values alone: `datasets` would turn a column of
    dates into timestamps and, in CSV, "007" into 7. In CSV the options in `choices` are separated by "|".

    Raises:
        DataError: no such file, another format, an empty file, or a row that cannot be parsed.
    """
    readers = {".jsonl": parse_lines, ".json": _parse_list, ".csv": _parse_csv}
    if path.suffix.lower() not in readers:
        raise DataError(f"{path} is no .jsonl, .json or .csv file.")
    return readers[path.suffix.lower()](path)


def parse_lines(path: Path) -> Rows:
    """Parse JSON lines; blank lines are skipped. Errors name the line."""
    rows: Rows = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            rows.append(_object(line, path, f"line {number}"))
    return _some(rows, path)


def _parse_list(path: Path) -> Rows:
    try:
        values = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno} is not valid JSON: {error.msg}.") from error
    if not isinstance(values, list):
        raise DataError(f"{path} must hold a list of objects (for one object a line, name it .jsonl).")
    for number, value in enumerate(values, start=1):
        if not isinstance(value, dict):
            raise DataError(f"{path}, row {number} is not a JSON object: {value!r}.")
    return _some(values, path)


def _parse_csv(path: Path) -> Rows:
    rows: Rows = []
    reader = csv.DictReader(io.StringIO(_text(path), newline=""))
    for number, row in enumerate(reader, start=1):
        if None in row or None in row.values():
            raise DataError(f"{path}, row {number} has not as many cells as the header.")
        parsed: dict[str, Any] = dict(row)
        if parsed.get("choices"):
            parsed["choices"] = [option.strip() for option in row["choices"].split("|")]
        rows.append(parsed)
    return _some(rows, path)


def _object(line: str, path: Path, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, {place} is not valid JSON: {error.msg} at column {error.colno}.") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}, {place} is not a JSON object: {line.strip()[:60]!r}.")
    return value


def _text(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"There is no file {path}.")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error


def _some(rows: Rows, path: Path) -> Rows:
    if not rows:
        raise DataError(f"{path} is empty: a split needs at least one row.")
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

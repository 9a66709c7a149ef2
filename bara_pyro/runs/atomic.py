"""Write the text and JSON files of a run atomically."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from bara_pyro.errors import CheckpointError
from bara_pyro.parts import part_folder, remove_parts
from bara_pyro.types import Json


def atomic_write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that readers see either the old content or the new, never a part.

    Args:
        path: the file; its folder is created if needed. It gets the permissions of any new file.
        write: called with a binary file object.

    Raises:
        CheckpointError: the write failed (full disk, no permission); the old content is untouched.
    """
    remove_parts(path.parent, path.name)
    with writing(path), part_folder(path) as place:
        with (place / path.name).open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(place / path.name, path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` within this context into a `CheckpointError` that names the file."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"Cannot write {path} ({error.strerror or error}): free space or choose another folder; "
            "earlier files are intact."
        ) from error


def check_there(file: IO[Any], path: Path) -> None:
    """Raise a `CheckpointError` if an open file was removed or replaced on disk."""
    try:
        there = os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        there = False
    if not there:
        raise CheckpointError(
            f"{path} was removed or replaced while it was being written: start again, and do not change its "
            "folder meanwhile."
        )


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `out` on success and is removed on failure.

    `out` must not exist or must be empty at the end.
    """
    remove_parts(out.parent, out.name)
    with part_folder(out) as holder:
        folder = holder / out.name
        folder.mkdir()
        yield folder
        if out.exists():
            out.rmdir()
        os.replace(folder, out)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; a lone surrogate, which UTF-8 cannot encode, is written as an escape."""
    atomic_write(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically; infinities and NaN become null."""
    write_text(path, json.dumps(_finite(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Json]) -> None:
    """Write one JSON object per line, atomically."""
    write_text(path, "".join(map(jsonl_line, rows)))


def jsonl_line(row: Json) -> str:
    """Return a line of JSON; infinities and NaN become null."""
    return json.dumps(_finite(row), allow_nan=False, ensure_ascii=False) + "\n"


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

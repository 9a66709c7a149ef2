"""Write files and folders atomically, and lock the folder of a run.

A writer works in a hidden, locked folder. The system releases the lock when a process ends for any reason, so
that leftovers of killed writers can be recognised. Where folders cannot be locked (Windows, some network
drives), they stay.
"""

import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.types import Json

try:
    import fcntl
except ImportError:  # Windows, where a folder cannot be opened either
    fcntl = None  # type: ignore[assignment]

LONGEST = 50  # characters of a file's name used in its part's name, which must not become too long
NAMED = re.compile(r"\..+\.bara-[0-9a-f]{8}\.part")


def is_part(name: str) -> bool:
    """Return whether a name is that of a part folder or file."""
    return bool(NAMED.fullmatch(name))


@contextmanager
def part_folder(path: Path) -> Iterator[Path]:
    """Yield a hidden folder beside a file or folder to write; move finished parts out of it.

    The folder is removed at the end, with everything left in it. Those of killed writers are removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_parts(path.parent, path.name)
    part, held = _held(path)
    while not part.exists():  # another writer removed it before it was locked
        _close(held)
        part, held = _held(path)
    try:
        yield part
    finally:
        with suppress(OSError):
            shutil.rmtree(part)
        _close(held)


def _held(path: Path) -> tuple[Path, int]:
    part = path.with_name(f".{path.name[:LONGEST]}.bara-{secrets.token_hex(4)}.part")
    part.mkdir()
    held = -1 if fcntl is None else os.open(part, os.O_RDONLY)
    _lock(held)
    return part, held


def remove_parts(folder: Path, name: str | None = None) -> None:
    """Remove leftovers of killed writers in a folder, or only those of one file or folder in it."""
    if fcntl is None or not folder.is_dir():
        return
    start = "." if name is None else f".{name[:LONGEST]}."
    for part in folder.iterdir():
        if not part.name.startswith(start) or not is_part(part.name):
            continue
        with suppress(OSError):  # already gone, a link, or not readable
            held = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _lock(held):
                    shutil.rmtree(part) if part.is_dir() else part.unlink()
            finally:
                os.close(held)


def _lock(held: int) -> bool:
    """Try to lock an open folder or file; return whether it worked."""
    if fcntl is None:
        return False  # type: ignore[unreachable]  # on Windows
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another process holds it, or the file system has no locks
        return False
    return True


def _close(held: int) -> None:
    if held >= 0:
        os.close(held)


def is_claimed(folder: Path) -> bool:
    """Return whether a process is training in an existing folder."""
    try:
        with claimed(folder):
            return False
    except ConfigError:
        return True


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock a folder, creating it if needed; a new folder that stays empty is removed afterwards.

    If another process holds the lock, this raises a `ConfigError`.
    """
    if fcntl is None:
        yield  # type: ignore[unreachable]  # on Windows
        return
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"Another process is training in {folder}: wait for it, or choose another out (--out)."
            ) from error
        except OSError:
            pass  # the file system cannot lock folders
        remove_parts(folder)
        yield
    finally:
        os.close(held)
        if new:
            with suppress(OSError):  # it holds a run by now
                folder.rmdir()


def atomic_write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that readers see either the old content or the new, never a part.

    Args:
        path: the file; its folder is created if needed. It gets the permissions of any new file.
        write: called with a binary file object.

    Raises:
        CheckpointError: the write failed (full disk, no permission); the old content is untouched.
    """
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

"""Write files by way of hidden, locked folders, so that leftovers of killed writers can be recognised.

The system releases the lock when a process ends for any reason. Where folders cannot be locked (Windows, some
network drives), leftovers of killed writers stay.
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

LONGEST = 50  # characters of a file's name used in its part's name, which must not become too long
NAMED = re.compile(r"\..+\.bara-[0-9a-f]{8}\.part")
BEFORE = re.compile(r"\.(.+)\.[0-9]+\.part")
"""Leftover of a killed writer of an older version: the file's name and the process id."""


def is_part(name: str) -> bool:
    """Return whether a name is that of a part folder or file."""
    return bool(NAMED.fullmatch(name) or BEFORE.fullmatch(name))


@contextmanager
def part_folder(path: Path) -> Iterator[Path]:
    """Yield a hidden folder beside a file or folder to write; move finished parts out of it.

    The folder is removed at the end, with everything left in it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
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
        before = BEFORE.fullmatch(part.name)
        ours = part.name.startswith(start) and NAMED.fullmatch(part.name)
        if not ours and (before is None or before[1] != name):
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

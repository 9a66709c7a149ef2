"""What is not whole yet stands in a hidden folder, locked while its writer runs: a killed one's is known.

The system lets go of the lock when a process ends, however it ends. Where it locks no folders (Windows, some
network drives) what a killed writer left stays.
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

LONGEST = 50  # characters of a name in its part's, which must not be too long where the file's is not
NAMED = re.compile(r"\..+\.bara-[0-9a-f]{8}\.part")
BEFORE = re.compile(r"\.(.+)\.[0-9]+\.part")
"""A file that a writer of an older version was killed over: the file's name and the number of the process."""


def is_part(name: str) -> bool:
    """Return whether a name is one of a part."""
    return bool(NAMED.fullmatch(name) or BEFORE.fullmatch(name))


@contextmanager
def part_folder(path: Path) -> Iterator[Path]:
    """Give a hidden folder beside a file or folder that is to be written, whose parts move from there.

    It is removed in the end, with what is still in it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part, held = _held(path)
    while not part.exists():  # another writer took it for a dead one's before it was locked
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
    """Remove what writers that are gone left in a folder, or what they left of one file or folder in it."""
    if fcntl is None or not folder.is_dir():
        return
    start = "." if name is None else f".{name[:LONGEST]}."
    for part in folder.iterdir():
        before = BEFORE.fullmatch(part.name)
        ours = part.name.startswith(start) and NAMED.fullmatch(part.name)
        if not ours and (before is None or before[1] != name):
            continue
        with suppress(OSError):  # gone by now, a link, or not ours to open
            held = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _lock(held):
                    shutil.rmtree(part) if part.is_dir() else part.unlink()
            finally:
                os.close(held)


def _lock(held: int) -> bool:
    """Lock what is open; return whether that was possible."""
    if fcntl is None:
        return False  # type: ignore[unreachable]  # on Windows
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody else holds it, or the file system locks nothing
        return False
    return True


def _close(held: int) -> None:
    if held >= 0:
        os.close(held)

"""Lock a run's folder so that only one process trains there; the lock is released when the process ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bara_pyro.errors import ConfigError
from bara_pyro.parts import remove_parts

try:
    import fcntl
except ImportError:  # Windows, where a folder cannot be opened either
    fcntl = None  # type: ignore[assignment]


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

    Raises:
        ConfigError: another process holds the lock.
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

"""Writing a file whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path | str, content: bytes) -> Path:
    """Write `content` to `path`, making its folder; a reader sees the old file or the new one, never a part.

    Raises:
        OSError: when the folder cannot be written to; `path` is then as it was.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp makes it private; a report is there to be read
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return target

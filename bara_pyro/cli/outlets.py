"""Standard output and error of a command, whose terminal or reader may be gone before it ends."""

import errno
import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

GONE = (errno.EIO, errno.EPIPE)
"""What writing ends with where the terminal was closed, and where a pipe has no reader left."""


class Outlet(io.FileIO):
    """What is written to a terminal or pipe; once nobody is there to read it, it is dropped."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write bytes; return how many."""
        try:
            return super().write(data)
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())  # what is still buffered is not tried again
            os.close(null)
            if error.errno not in GONE:
                raise
        return memoryview(data).nbytes


def outlast_readers() -> None:
    """Let the command go on, and end with its own exit code, where nobody reads what it says any more."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed before the command began
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif stream is getattr(sys, f"__{name}__"):  # not a stand-in that somebody set up
            stream.flush()
            raw = io.BufferedWriter(Outlet(stream.fileno(), "w", closefd=False))
            text = io.TextIOWrapper(
                raw,
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, text)

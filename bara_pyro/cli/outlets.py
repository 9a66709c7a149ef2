"""Keep a command running if its terminal or the reader of its output goes away, and silence libraries."""

import errno
import io
import logging
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


GONE = (errno.EIO, errno.EPIPE)
"""The errors of writing to a closed terminal, and to a pipe without a reader."""


class Outlet(io.FileIO):
    """A terminal or pipe that drops what is written once nobody reads it."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write bytes; return their number."""
        try:
            return super().write(data)
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())  # so that buffered text is not written again
            os.close(null)
            if error.errno not in GONE:
                raise
        return memoryview(data).nbytes


def outlast_readers() -> None:
    """Let the command continue, and end with its own exit code, if nobody reads its output."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed before the command began
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif stream is getattr(sys, f"__{name}__"):  # not replaced by a caller or a test
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


# transformers imports the first three if they are installed, and they log what they lack. lm-eval warns of
# settings that were chosen on purpose.
TALKATIVE = ("torchao", "bitsandbytes", "torch.utils._pytree", "lm_eval")


def hush_libraries() -> None:
    """Let other libraries log only errors. Commands call this; importing the package does not."""
    for library in TALKATIVE:
        logging.getLogger(library).setLevel(logging.ERROR)

"""Read untrusted Parquet files: a separate process decodes them within limits."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from bara_pyro.errors import DataError
from bara_pyro.untrusted.limits import limit_memory

if TYPE_CHECKING:
    import pyarrow as pa

MEMORY = 2**31  # most bytes for decoding
ROWS, MOST = 1000, 2**30  # rows of a batch, and the most bytes that it may take in Python
WITHOUT_END = 2**62


def batches_in(path: Path, of_all: int = WITHOUT_END) -> Iterator["pa.RecordBatch"]:
    """Yield the rows of a Parquet file in batches of `ROWS`, each of at most `MOST` bytes.

    Args:
        path: path of the file.
        of_all: the most bytes that all batches may take together.

    Raises:
        DataError: the rows take more memory than that, or decoding them takes more than `MEMORY`.
        ValueError: it is not a Parquet file.
    """
    import pyarrow as pa

    limits = map(str, (ROWS, MOST, of_all))
    process = subprocess.Popen(  # noqa: S603 - a file of ours
        [sys.executable, "-P", str(Path(__file__).with_name("decoding.py")), *limits],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},  # other pools reserve address space
        start_new_session=True,  # Ctrl-C must only reach the parent
    )
    to, output, errors = (cast(IO[bytes], pipe) for pipe in (process.stdin, process.stdout, process.stderr))
    broken = why = ""
    with process:
        output.read(1)  # it has started
        limit_memory(process, MEMORY)
        to.write(json.dumps(str(path.absolute())).encode() + b"\n")
        to.close()
        try:
            if cast(BufferedReader, output).peek(1):
                yield from pa.ipc.open_stream(output)
        except (pa.ArrowException, OSError) as error:
            broken = str(error)
        output.close()
        why = errors.read(2000).decode(errors="replace").strip()
    if why == "memory" or process.returncode < 0:
        raise DataError(
            f"{path} takes more than {min(of_all, MOST) / 2**30:g} GiB once decoded: write fewer rows or "
            "columns per file."
        )
    if broken or why:
        raise ValueError((why or broken).splitlines()[-1])

"""Decode a Parquet file in a separate process: started by `parquet.py`, never imported.

A few kilobytes of Parquet can decode to any amount of memory, for example if a million rows share one long
text. The parent process limits this one's memory, and the size that rows will have in Python is checked
before they are passed on.

python decoding.py ROWS MOST ALL      then a path, as a line of JSON; writes an Arrow stream
"""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq

OBJECT = 64  # bytes of overhead of a Python object


def weight(array: pa.Array) -> int:
    """Return roughly how many bytes the values of an array take as Python objects."""
    kind = array.type
    if pa.types.is_dictionary(kind):  # in Python each row gets its own copy of the text
        return weight(array.dictionary_decode())
    if isinstance(array, pa.ExtensionArray):
        return weight(array.storage)
    if pa.types.is_nested(kind):
        parts = array.flatten() if pa.types.is_struct(kind) else [array.flatten()]
        return OBJECT * len(array) + sum(map(weight, parts))
    return OBJECT * len(array) + int(array.nbytes)


def write_batches(path: str, rows: int, most: int, of_all: int) -> None:
    """Write a file in batches of `rows`; a batch may take `most` bytes in Python, the file `of_all`."""
    with (
        pq.ParquetFile(path, buffer_size=2**20) as file,
        pa.ipc.new_stream(sys.stdout.buffer, file.schema_arrow) as out,
    ):
        for batch in file.iter_batches(rows, use_threads=False):
            size = sum(map(weight, batch.columns))
            of_all -= size
            if size > most or of_all < 0:
                raise MemoryError
            out.write_batch(batch)


def main() -> None:
    """Report that the process has started, and decode the file named on stdin."""
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    limits = map(int, sys.argv[1:])
    try:
        write_batches(json.loads(sys.stdin.readline()), *limits)
    except MemoryError:
        sys.exit("memory")
    except (pa.ArrowException, OSError, ValueError) as error:
        sys.exit(str(error).splitlines()[0][:500])


if __name__ == "__main__":
    main()

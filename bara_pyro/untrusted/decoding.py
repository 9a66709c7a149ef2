"""A process of its own that decodes a Parquet file: started by `parquet.py`, never imported.

A few kilobytes can stand for any amount of memory: a page of one letter, a text that each of a million rows
has. Here memory has a limit, set by whoever started the process, and rows are counted as they will be in
Python before they are handed on.

python decoding.py ROWS MOST ALL      then a path, as a line of JSON; writes an Arrow stream
"""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq

OBJECT = 64  # bytes that a value takes in Python, beside its own


def weight(array: pa.Array) -> int:
    """Return the bytes that the values of an array take as objects of Python, roughly."""
    kind = array.type
    if pa.types.is_dictionary(kind):  # each row has a text of its own there
        return weight(array.dictionary_decode())
    if isinstance(array, pa.ExtensionArray):
        return weight(array.storage)
    if pa.types.is_nested(kind):
        parts = array.flatten() if pa.types.is_struct(kind) else [array.flatten()]
        return OBJECT * len(array) + sum(map(weight, parts))
    return OBJECT * len(array) + int(array.nbytes)


def write_batches(path: str, rows: int, most: int, of_all: int) -> None:
    """Write the rows of a file in batches of so many, each and all of at most so many bytes in Python."""
    with (
        pq.ParquetFile(path, buffer_size=2**20) as file,
        pa.ipc.new_stream(sys.stdout.buffer, file.schema_arrow) as out,
    ):
        for batch in file.iter_batches(rows, use_threads=False):
            own = sum(map(weight, batch.columns))
            of_all -= own
            if own > most or of_all < 0:
                raise MemoryError
            out.write_batch(batch)


def main() -> None:
    """Say that the process has started, and decode."""
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

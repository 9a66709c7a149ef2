"""Read text and JSON from regular files, with limits on size, depth and numbers."""

import errno
import json
import math
import os
import stat
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeGuard

from pydantic import Field, TypeAdapter, ValidationError

from bara_pyro.errors import BaraError, CheckpointError, DataError
from bara_pyro.untrusted.schemas import MOST_JSON, Stored, Text, checked

MOST_LINES = 2**32
"""Most bytes of a file of JSON lines; a line may have `MOST_JSON`."""
DEPTH = 64
"""Most levels of nesting."""
DIGITS = 20
"""Most digits of a whole number: enough for 64 bits."""


def check_regular(path: Path) -> os.stat_result:
    """Refuse anything but a regular file: reading a FIFO or a terminal would block, and a device never ends.

    Links to regular files are accepted, because downloads of the hub are folders of links. An `OSError` says
    that the file does not exist or is not regular.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not a regular file")
    return status


def check_name(path: Path, error: type[BaraError]) -> None:
    """Refuse a name that no file or folder can have.

    Args:
        path: the name.
        error: the exception to raise.
    """
    try:
        path.lstat()
    except (OSError, ValueError) as no:
        if isinstance(no, ValueError) or no.errno == errno.ENAMETOOLONG:
            raise error(f"{path.name[:60]!r} is not a valid file name ({why(no)}): give another.") from no


def require_file(path: Path) -> None:
    """Raise a `DataError` unless rows can be read there, more than once: in a regular file."""
    if path.is_file():
        return
    if path.exists():
        raise DataError(f"{path} is a folder, a pipe or a device: give a file instead.")
    raise DataError(f"There is no file {path}: check the path.")


def there(path: Path) -> bool:
    """Return whether a file or folder exists; False for invalid names."""
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True


def read_text(path: Path, *, most: int = MOST_JSON) -> str:
    """Return the text of a regular file in UTF-8.

    Args:
        path: the file.
        most: the most bytes that it may have.

    Raises:
        OSError, ValueError: the file cannot be read, is too large, or is not UTF-8; the message says why.
    """
    size = check_regular(path).st_size
    if size > most:
        raise ValueError(f"it has {size:,} bytes, more than the limit of {most:,}")
    with path.open("rb") as file:
        return decoded(file.read(size))  # `read` allocates this many bytes even if the file is shorter


def decoded(data: bytes) -> str:
    """Decode UTF-8; a `ValueError` names the position of the first invalid byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from error


def bounded_json(text: str, *, finite: bool = True, digits: int = DIGITS) -> Any:
    """Parse JSON within limits.

    Args:
        text: the JSON.
        finite: refuse NaN and infinities, which are not JSON but which Python writes.
        digits: the most digits of a whole number.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or has a number that is too long or infinite.
    """
    try:
        value = json.loads(
            text,
            parse_int=partial(_whole, digits),
            parse_float=_number if finite else float,
            parse_constant=_refused if finite else None,
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if text.count("[") + text.count("{") > DEPTH:
        _check_depth(value)
    return value


def read_json(path: Path, schema: type[Stored] | None = None) -> Any:
    """Return the content of a JSON file of bara_pyro, unchanged.

    Args:
        path: the file.
        schema: the schema to check; None: any JSON.

    Raises:
        CheckpointError: the file is missing, not regular, too large, not valid JSON, or violates the schema.
    """
    try:
        value = bounded_json(read_text(path, most=MOST_JSON if schema is None else schema.most_bytes))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read {path} ({why(error)}): give the folder of a run.") from error
    return value if schema is None else checked(value, schema, path)


def read_jsonl(path: Path, schema: type[Stored] | None = None) -> list[dict[str, Any]]:
    """Return the lines of a JSONL file; an unfinished line at the end is left out.

    Args:
        path: the file; a missing file counts as empty.
        schema: the schema of each line; None: any object.

    Raises:
        CheckpointError: the file cannot be read, or a line is not a JSON object or violates the schema.
    """
    try:
        lines = list(_objects(path)) if path.exists() else []
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read {path} ({why(error)}): restore it from a copy.") from error
    if schema is None:
        return lines
    return [checked(line, schema, f"{path}, line {number},") for number, line in enumerate(lines, 1)]


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    size = check_regular(path).st_size
    if size > MOST_LINES:
        raise ValueError(f"it has {size:,} bytes, more than the limit of {MOST_LINES:,}")
    with path.open("rb") as file:
        number = 0
        # Lines of bytes end only at a line feed; a text may contain other line separators.
        while (line := file.readline(MOST_JSON)).endswith(b"\n"):
            number += 1
            try:
                value = bounded_json(decoded(line), finite=False)  # a log may record an infinite norm
            except ValueError as error:
                raise ValueError(f"line {number}: {why(error)}") from error
            if not isinstance(value, dict):
                raise ValueError(f"line {number} is not a JSON object")  # noqa: TRY004 - the file is wrong
            yield value
        if len(line) >= MOST_JSON:
            raise ValueError(f"line {number + 1} has more than {MOST_JSON:,} bytes")


def first_object(path: Path) -> dict[str, Any] | None:
    """Return the object in the first line of a file; None if there is no file or no object."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            value = bounded_json(decoded(file.readline(MOST_JSON)), finite=False)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def why(error: Exception) -> str:
    """Return the reason of an error as part of a sentence."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON: {error.msg} in line {error.lineno}, column {error.colno}"
    return str(error).rstrip(".")


def _whole(most: int, digits: str) -> int:
    if len(digits) > most:
        raise ValueError(f"a whole number of {len(digits):,} digits is too long")
    return int(digits)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:DIGITS]} is too large")
    return value


def _refused(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(DEPTH):
        nested = [outer.values() if isinstance(outer, dict) else outer for outer in level if _holds(outer)]
        level = [inner for values in nested for inner in values]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEPTH} levels deep")


def _holds(value: object) -> TypeGuard[dict[str, object] | list[object]]:
    return isinstance(value, dict | list)


MOST_HEADER, MOST_TENSORS = 2**26, 1_000_000
LENGTH = struct.Struct("<Q")  # before the header
METADATA = "__metadata__"
Size = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Header(Stored):
    """A header's entry for a tensor."""

    dtype: Text
    shape: Annotated[list[Size], Field(max_length=8)]
    data_offsets: Annotated[list[Size], Field(min_length=2, max_length=2)]


HEADERS = TypeAdapter(Annotated[dict[Text, Header], Field(max_length=MOST_TENSORS)])
TEXTS = TypeAdapter(dict[Text, str])


def check_tensors(path: Path) -> dict[str, Header]:
    """Return the header of a safetensors file after checking that all tensors lie within the file.

    safetensors itself checks that shapes and sizes agree. An `OSError` or a `ValueError` says why the file
    cannot be read.
    """
    size = check_regular(path).st_size
    with path.open("rb") as file:
        start = file.read(LENGTH.size)
        if len(start) < LENGTH.size:
            raise ValueError("it ends within its header")
        length = LENGTH.unpack(start)[0]
        if length > min(size - LENGTH.size, MOST_HEADER):
            raise ValueError(f"its header has {length:,} bytes, but the file {size:,}")
        content = bounded_json(decoded(file.read(length)))
    if not isinstance(content, dict):
        raise ValueError("its header is not a JSON object")  # noqa: TRY004 - the file is wrong
    try:
        TEXTS.validate_python(content.pop(METADATA, {}), strict=True)
        headers = HEADERS.validate_python(content)
    except ValidationError as error:
        raise ValueError(f"its header is damaged at {error.errors()[0]['loc']}") from error
    data = size - LENGTH.size - length
    for name, header in headers.items():
        if not 0 <= header.data_offsets[0] <= header.data_offsets[1] <= data:
            raise ValueError(f"{name[:60]!r} lies outside its {data:,} bytes")
    return headers

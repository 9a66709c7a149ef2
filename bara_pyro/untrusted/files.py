"""Text and JSON of regular files, of bounded size, depth and numbers."""

import errno
import json
import math
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from bara_pyro.errors import BaraError, CheckpointError
from bara_pyro.untrusted.schemas import MOST_JSON, Stored, checked

MOST_LINES = 2**32
"""Bytes of a file of JSON lines; a line has at most `MOST_JSON`."""
DEPTH = 64
"""Levels of nesting."""
DIGITS = 20
"""Digits of a whole number: those of 64 bits."""


def check_regular(path: Path) -> os.stat_result:
    """Refuse what is no regular file: a FIFO or a terminal would be waited for, and a device never ends.

    A link to a regular file is one: downloads of the hub are folders of links, and whoever could place the
    link could have placed the file.

    Raises:
        OSError: it is none, or is not there.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is no regular file")
    return found


def check_name(path: Path, error: type[BaraError]) -> None:
    """Refuse a name that no file or folder can have, of which the system says no more than that.

    Args:
        path: the name.
        error: what to raise: of a run, of rows, ..
    """
    try:
        path.lstat()
    except (OSError, ValueError) as no:
        if isinstance(no, ValueError) or no.errno == errno.ENAMETOOLONG:
            raise error(f"{path.name[:60]!r} is no name of a file ({why(no)}): give another.") from no


def there(path: Path) -> bool:
    """Return whether there is a file or folder of that name; none is of a name that no system takes."""
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True


def read_text(path: Path, *, most: int = MOST_JSON) -> str:
    """Return the text of a regular file in UTF-8.

    Args:
        path: the file.
        most: bytes that it may have.

    Raises:
        OSError, ValueError: it cannot be read, is longer, or is no UTF-8; the message says why.
    """
    size = check_regular(path).st_size
    if size > most:
        raise ValueError(f"it has {size:,} bytes, and at most {most:,} are read")
    with path.open("rb") as file:
        return decoded(file.read(size))  # as much is allocated as is asked for, whatever is there


def decoded(data: bytes) -> str:
    """Return bytes as text; a `ValueError` that names the first byte that is no UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is no UTF-8") from error


def bounded_json(text: str, *, finite: bool = True, digits: int = DIGITS) -> Any:
    """Return what JSON says.

    Args:
        text: the JSON.
        finite: refuse NaN and infinities, which JSON does not have and Python writes.
        digits: that a whole number may have.

    Raises:
        ValueError: it is no JSON, is nested too deeply, or holds a number that is too long or not finite.
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
    """Return what a JSON file of ours says, as it is there.

    Args:
        path: the file.
        schema: what it has to hold; None: anything.

    Raises:
        CheckpointError: it is missing, no regular file, too long, no valid JSON, or not of the schema.
    """
    try:
        value = bounded_json(read_text(path, most=MOST_JSON if schema is None else schema.most_bytes))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read {path} ({why(error)}): give the folder of a run.") from error
    return value if schema is None else checked(value, schema, path)


def read_jsonl(path: Path, schema: type[Stored] | None = None) -> list[dict[str, Any]]:
    """Return the whole lines of a file of one JSON object a line; half a line at the end is left out.

    Args:
        path: the file; one that is not there is empty.
        schema: what each line has to hold; None: anything.

    Raises:
        CheckpointError: the file cannot be read, or a whole line is no JSON object or not of the schema.
    """
    try:
        lines = list(_objects(path)) if path.exists() else []
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read {path}: {why(error)}.") from error
    if schema is None:
        return lines
    return [checked(line, schema, f"{path}, line {number},") for number, line in enumerate(lines, 1)]


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    size = check_regular(path).st_size
    if size > MOST_LINES:
        raise ValueError(f"it has {size:,} bytes, and at most {MOST_LINES:,} are read")
    with path.open("rb") as file:
        number = 0
        # Bytes end with a line feed alone; a text may hold ends of lines of its own.
        while (line := file.readline(MOST_JSON)).endswith(b"\n"):
            number += 1
            try:
                value = bounded_json(decoded(line), finite=False)  # a log may say that a norm was infinite
            except ValueError as error:
                raise ValueError(f"line {number}: {why(error)}") from error
            if not isinstance(value, dict):
                raise ValueError(f"line {number} is no JSON object")  # noqa: TRY004 - the file is wrong
            yield value
        if len(line) >= MOST_JSON:
            raise ValueError(f"line {number + 1} has more than {MOST_JSON:,} bytes")


def first_object(path: Path) -> dict[str, Any] | None:
    """Return the object in the first line of a file; None where it holds something else, or is not there."""
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
        return f"no valid JSON: {error.msg} in line {error.lineno}, column {error.colno}"
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
    raise ValueError(f"{name} is no number that JSON has")


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

"""Read files of text as dictionaries, one per row: JSON lines, and tables of text."""

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, dropwhile
from pathlib import Path
from typing import Any

from bara_pyro.errors import DataError
from bara_pyro.types import Json
from bara_pyro.untrusted.files import check_name, require_file
from bara_pyro.untrusted.schemas import MOST_JSON

Rows = list[Json]
UTF16 = (b"\xff\xfe", b"\xfe\xff")
MOST_WHOLE = 2**31
"""Most bytes of a file that is read as a whole; a line may have `MOST_JSON` characters."""
SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}
DECLARED = re.compile(r'"?sep=([^\w "]|\t)"?[,;\t]*\s*', re.IGNORECASE)


def objects_in(path: Path) -> Iterator[Json]:
    """Yield the objects of a file of JSON lines, skipping blank lines; errors name the line."""
    for number, ended in enumerate(lines_in(path), start=1):
        line = ended.removesuffix("\n")
        if not line.strip():
            continue
        value = parse_json(line, path, f"line {number}")
        if not isinstance(value, dict):
            raise DataError(f"{path}, line {number} is not a JSON object: {line.strip()[:60]!r}.")
        yield value


def parse_json(text: str, path: Path, place: str = "") -> Any:
    """Parse JSON; a `DataError` for other text and for objects with duplicate keys.

    It names the file, and the given place or else the line.
    """
    where = f"{path}{', ' if place else ''}{place}"
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except DataError as error:  # it is also a ValueError
        raise DataError(f"{where}: {error}") from None
    except json.JSONDecodeError as error:
        line = place or f"line {error.lineno}"
        each = "; each line must be one JSON object" if path.suffix.lower() == ".jsonl" else ""
        if error.msg == "Extra data" and not place:
            each = "; if it has one object per line, name it .jsonl"
        raise DataError(
            f"{path}, {line} is not valid JSON: {error.msg} at column {error.colno}{each}."
        ) from error
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
        raise DataError(f"{where} cannot be read: {reason}.") from error


def text_in(path: Path) -> str:
    """Return the text of a file; more than `MOST_WHOLE` bytes raise a `DataError`. See `opened`."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_WHOLE:
            raise DataError(
                f"{path} has {size:,} bytes, more than the {MOST_WHOLE:,} that can be read at once: save it "
                "as .jsonl, one row per line."
            )
        return file.read()


def lines_in(path: Path, newline: str = "\n") -> Iterator[str]:
    """Yield the lines of a file with their ends, at most `MOST_JSON` characters each; see `opened`."""
    with opened(path, newline) as file:
        number = 0
        while line := file.readline(MOST_JSON + 1):
            number += 1
            if len(line) > MOST_JSON:
                raise DataError(
                    f"{path}, line {number} has more than {MOST_JSON:,} characters: end each row with a line "
                    "feed."
                )
            yield line


@contextmanager
def opened(path: Path, newline: str = "\n") -> Iterator[io.TextIOWrapper]:
    """Open a regular file of text in UTF-8, or in UTF-16 with a byte order mark.

    Errors now or while it is read become a `DataError` that names the file. Lines end as `newline` says, see
    `io.TextIOWrapper`; unlike there, the default is a line feed.
    """
    check_name(path, DataError)
    require_file(path)
    try:
        with path.open("rb") as file:
            encoding = "utf-16" if file.peek(2)[:2] in UTF16 else "utf-8-sig"
            try:
                yield io.TextIOWrapper(file, encoding, newline=newline)
            except UnicodeDecodeError as error:
                place = file.tell() - len(error.object) + error.start
                raise DataError(
                    f"{path} is not UTF-8 text (byte {place}): save it as UTF-8 (in Excel: CSV UTF-8)."
                ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check its permissions.") from error


def check_names(names: Sequence[str], place: str = "it") -> None:
    """Raise a `DataError` for a name that occurs twice, of which only the last value would be read."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{place} has the name {twice!r} twice: rename one, or leave it out.")


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> Json:
    """Return names with their values as a dictionary; see `check_names`."""
    by_name = dict(pairs)
    if len(by_name) < len(pairs):
        check_names([name for name, _ in pairs])
    return by_name


def csv_rows(path: Path) -> Iterator[Json]:
    """Yield the rows of a file as dictionaries of texts.

    The standard library reads it, because other readers turn "007" into 7 and "NA" into an empty cell.

    Raises:
        DataError: the file cannot be read, has two columns of the same name or a filled column without a
            name, or a row has too many or too few cells.
    """
    header, separator, lines = _header_of(path)
    cells, number = csv.reader(chain([header], lines), delimiter=separator, strict=True), 0
    try:
        names = [name.strip() for name in next(cells, [])]
        # Spreadsheets append unnamed empty cells; an unnamed first column holds the row numbers of pandas.
        named = [i for i, name in enumerate(names) if name or not i]
        least = max(named, default=-1) + 1
        check_names([names[i] for i in named], str(path))
        for number, row in enumerate(_without_blank_lines(cells, len(names)), start=1):
            place = f"{path}, row {number}"
            if not least <= len(row) <= len(names):
                raise _ragged(place, row, least, separator)
            _check_cells(place, row, names, separator)
            yield {names[i]: row[i] for i in named}
    except csv.Error as error:
        place = f"{path}, row {number + 1}"
        if "expected after" in str(error):
            raise DataError(
                f"{place} has text after a closing quotation mark: double the marks within a text and quote "
                "the whole cell, or remove them."
            ) from error
        if "unexpected end" in str(error):
            raise DataError(
                f"{place} has a quotation mark that is never closed: double it and quote the whole cell, or "
                "remove it."
            ) from error
        raise DataError(f"{place} cannot be read: {error}.") from error


def _check_cells(place: str, row: list[str], names: list[str], separator: str) -> None:
    """Refuse text in a column without a name, and a cell that holds whole rows of a tab-separated file."""
    for i, cell in enumerate(row):
        if i and not names[i] and cell.strip():
            raise DataError(
                f"{place} has {cell[:40]!r} in column {i + 1}, which has no name in the header: name the "
                "column, or quote the text that it belongs to."
            )
        if separator == "\t" and "\n" in cell and "\t" in cell:
            raise DataError(
                f"{place} has a quotation mark before {cell.splitlines()[0][:40]!r} that swallows the rows "
                "after it: double it and quote the whole cell, or remove it."
            )


def separator_in(path: Path) -> str:
    """Return the character that separates the cells of a .csv or .tsv file."""
    return _header_of(path)[1]


def _header_of(path: Path) -> tuple[str, str, Iterator[str]]:
    """Return the header of a file, its separator, and the lines after the header."""
    csv.field_size_limit(MOST_JSON)  # characters per cell; the module's own limit is 131,072
    lines = dropwhile(_blank, lines_in(path, newline=""))  # also splits at "\r"
    first = next(lines, "")
    if declared := DECLARED.fullmatch(first):  # Excel's line "sep=;" above the header
        return next(dropwhile(_blank, lines), ""), declared[1], lines
    if path.suffix.lower() == ".tsv":
        return first, "\t", lines
    # The one that splits the header into most cells.
    return first, max(SEPARATORS, key=lambda sign: len(next(csv.reader([first], delimiter=sign), []))), lines


def _blank(line: str) -> bool:
    return not line.strip("\r\n,;|\t ")


def _ragged(place: str, row: list[str], expected: int, separator: str) -> DataError:
    sign, hint = SEPARATORS.get(separator, repr(separator)), ""
    if len(row) == 1 and (others := [name for other, name in SEPARATORS.items() if other in row[0]]):
        hint = f", but this row by {others[0]}?"  # it could also be a text that has one
    return DataError(
        f"{place} has {len(row)} cells and the header has {expected} (separated by {sign}{hint}): use {sign} "
        f"throughout, and quote texts that contain {sign}, a quotation mark or a line break."
    )


def _without_blank_lines(rows: Iterable[list[str]], columns: int) -> Iterator[list[str]]:
    """Drop blank lines; in a file of one column only those at the end, as the others are empty rows."""
    blank = 0
    for row in rows:
        if row:
            yield from [[""]] * blank
            yield row
            blank = 0
        elif columns == 1:
            blank += 1

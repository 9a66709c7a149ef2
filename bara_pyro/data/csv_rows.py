"""Rows of a .csv or .tsv file, one at a time, every cell a text."""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, dropwhile, takewhile
from pathlib import Path

from bara_pyro.data.cells import check_names
from bara_pyro.data.reading import lines_in
from bara_pyro.errors import DataError
from bara_pyro.types import Json
from bara_pyro.untrusted.schemas import MOST_JSON

SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
TOLD = re.compile(r'"?sep=([^\w "]|\t)"?[,;\t]*\s*', re.IGNORECASE)
END = "\x1e end \x1e"  # a line behind the last one, which an open quotation mark would take in
LONGEST = MOST_JSON  # characters of a cell; the csv module stops at 131,072 by itself


def csv_rows(path: Path) -> Iterator[Json]:
    """Read cells as texts, by the standard library: other readers turn "007" into 7 and "NA" into nothing.

    Raises:
        DataError: the file cannot be read, has two columns of one name, something in a column without a name,
            or a row of more or fewer cells.
    """
    read = 0
    try:
        for row in _rows(path, strict=True):
            yield row
            read += 1
    except csv.Error as error:
        with suppress(csv.Error):  # says what is wrong, where that can be told
            for _ in _rows(path, strict=False):
                pass
        if "expected after" not in str(error):
            raise DataError(f"{path} cannot be read: {error}.") from error
        raise DataError(
            f"{path}, row {read + 1} has text behind a closing quotation mark: double the marks of a text "
            "and put its whole cell in quotation marks, or take them out."
        ) from error


def _rows(path: Path, *, strict: bool) -> Iterator[Json]:
    """Read a file; not `strict`, what stands behind a closing quotation mark is a part of the cell."""
    header, separator, lines = _opened(path)
    cells = csv.reader(chain([header], lines, [END]), delimiter=separator, strict=strict)
    names = [name.strip() for name in next(cells, [])]
    # Spreadsheets end lines in cells without a name; the first column is one that pandas numbers rows in.
    named = [i for i, name in enumerate(names) if name or not i]
    unnamed = [i for i, name in enumerate(names) if i and not name]
    least = max(named, default=-1) + 1
    check_names([names[i] for i in named], str(path))
    for number, row in enumerate(_without_blank_lines(cells, len(names)), start=1):
        place = f"{path}, row {number}"
        _check_quotes(place, row, separator)
        if not least <= len(row) <= len(names):
            raise _ragged(place, row, least, separator)
        _check_unnamed(place, row, unnamed)
        yield {names[i]: row[i] for i in named}


def _check_unnamed(place: str, row: list[str], unnamed: list[int]) -> None:
    """Refuse a row with something in a column that has no name."""
    for i in unnamed:
        if i < len(row) and row[i].strip():
            raise DataError(
                f"{place} has {row[i][:40]!r} in column {i + 1}, which has no name in the header: name it, "
                "or put the text that it is a part of in quotation marks."
            )


def separator_in(path: Path) -> str:
    """Return what separates the cells of a .csv or .tsv file.

    Raises:
        DataError: the file cannot be read.
    """
    return _opened(path)[1]


def _opened(path: Path) -> tuple[str, str, Iterator[str]]:
    """Return the header of a file, what separates its cells, and the lines behind the header."""
    csv.field_size_limit(LONGEST)
    ends = (io.StringIO(line, newline="") for line in lines_in(path))  # old Macs', too
    lines = dropwhile(_blank, chain.from_iterable(ends))
    first = next(lines, "")
    if told := TOLD.fullmatch(first):  # Excel's way to say it, above the header
        return next(dropwhile(_blank, lines), ""), told[1], lines
    return first, _separator(first, path), lines


def _blank(line: str) -> bool:
    return not line.strip("\r\n,;\t ")


def _check_quotes(place: str, row: list[str], separator: str) -> None:
    """Refuse a cell that a quotation mark opens and that takes in the rows behind it.

    Seen where nothing closes it, and where the cell holds tabs and lines in a file separated by tabs.
    """
    for cell in row:
        swallowed = separator == "\t" and "\n" in cell and "\t" in cell
        if swallowed or END in cell:
            what = "takes in the rows behind it" if swallowed else "nothing closes"
            raise DataError(
                f"{place} has a quotation mark before {cell.splitlines()[0][:40]!r} that {what}: double it "
                "and put the whole cell in quotation marks, or take it out."
            )


def _ragged(place: str, row: list[str], wanted: int, separator: str) -> DataError:
    sign, hint = SEPARATORS.get(separator, repr(separator)), ""
    if len(row) == 1 and (others := [name for other, name in SEPARATORS.items() if other in row[0]]):
        hint = f", but this row by {others[0]}?"  # it could also be a text that has one
    return DataError(
        f"{place} has not as many cells as the header ({len(row)} and not {wanted}, separated by "
        f"{sign}{hint}): separate all by {sign}, and put texts with {sign}, a quotation mark or a line break "
        "in quotation marks."
    )


def _without_blank_lines(rows: Iterable[list[str]], columns: int) -> Iterator[list[str]]:
    """Drop blank lines; in a file of one column only those at its end, as others are rows without a text."""
    blank = 0
    for row in takewhile(lambda row: row != [END], rows):
        if row:
            yield from [[""]] * blank
            yield row
            blank = 0
        elif columns == 1:
            blank += 1


def _separator(header: str, path: Path) -> str:
    """Return what separates the header's cells: of comma, semicolon and tab the one that makes most of it."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    return max(SEPARATORS, key=lambda sign: len(next(csv.reader([header], delimiter=sign), [])))

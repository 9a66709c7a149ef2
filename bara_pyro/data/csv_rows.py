"""Read the rows of a .csv or .tsv file one at a time, with every cell as text."""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from itertools import chain, dropwhile
from pathlib import Path

from bara_pyro.data.cells import check_names
from bara_pyro.data.reading import lines_in
from bara_pyro.errors import DataError
from bara_pyro.types import Json
from bara_pyro.untrusted.schemas import MOST_JSON

SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
DECLARED = re.compile(r'"?sep=([^\w "]|\t)"?[,;\t]*\s*', re.IGNORECASE)
LONGEST = MOST_JSON  # characters per cell; the csv module's own limit is 131,072


def csv_rows(path: Path) -> Iterator[Json]:
    """Yield the rows of a file as dictionaries of texts.

    The standard library reads it, because other readers turn "007" into 7 and "NA" into an empty cell.

    Raises:
        DataError: the file cannot be read, has two columns of the same name or a filled column without a
            name, or a row has too many or too few cells.
    """
    header, separator, lines = _opened(path)
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
    return _opened(path)[1]


def _opened(path: Path) -> tuple[str, str, Iterator[str]]:
    """Return the header of a file, its separator, and the lines after the header."""
    csv.field_size_limit(LONGEST)
    ends = (io.StringIO(line, newline="") for line in lines_in(path))  # also splits at "\r"
    lines = dropwhile(_blank, chain.from_iterable(ends))
    first = next(lines, "")
    if declared := DECLARED.fullmatch(first):  # Excel's line "sep=;" above the header
        return next(dropwhile(_blank, lines), ""), declared[1], lines
    if path.suffix.lower() == ".tsv":
        return first, "\t", lines
    # The one that splits the header into most cells.
    return first, max(SEPARATORS, key=lambda sign: len(next(csv.reader([first], delimiter=sign), []))), lines


def _blank(line: str) -> bool:
    return not line.strip("\r\n,;\t ")


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

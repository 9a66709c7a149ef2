"""Tables of results for the terminal (rich), Markdown and HTML."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from bara_pyro.errors import ConfigError
from bara_pyro.types import Fields

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    key: str  # the key in each row
    heading: str  # without the unit
    unit: str = ""  # shown in brackets after the heading
    format: str = ".2f"  # format specification for numbers; text is shown unchanged
    best: Literal["max", "min"] | None = None  # which number to mark as the best; None: none
    second: bool = False  # also mark the second best number

    def __post_init__(self) -> None:
        if self.best not in ("max", "min", None):
            raise ConfigError(f"best of column {self.key!r} is {self.best!r}: choose one of max, min, None.")

    @property
    def title(self) -> str:
        """The heading with its unit."""
        return f"{self.heading} ({self.unit})" if self.unit else self.heading


@dataclass(frozen=True)
class Table:
    """A table of results."""

    columns: Sequence[Column]  # from left to right; the first one names the row
    # A mapping for each row; values are numbers, pairs (mean, standard deviation), text or None.
    rows: Sequence[Fields]
    caption: str = ""  # a line above the table


@dataclass(frozen=True)
class Cell:
    """A formatted value."""

    text: str
    numeric: bool  # whether the column is aligned as numbers
    best: bool  # whether to mark it as the best of its column
    second: bool = False  # whether to mark it as the second best


def _number(value: object) -> float | None:
    """Return the number to rank a value by, or None if it has none."""
    if isinstance(value, tuple | list):
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _show(value: object, specification: str) -> str:
    """Return a value as text."""
    if value is None:
        return MISSING
    if isinstance(value, tuple | list):
        middle, deviation = value
        return f"{_show(middle, specification)} ± {_show(deviation, specification.lstrip('+'))}"
    number = _number(value)
    if number is None:
        return str(value)
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    return "NaN" if math.isnan(number) else format(value, specification)


def _marked(column: Column, shown: Sequence[tuple[float | None, str]]) -> tuple[str | None, str | None]:
    """Return the texts of the best and the second best value, or None to mark none.

    Values with the same text are equally good: all values that round to the best one are marked. None is
    marked if all rows share it. A second best value needs a worse one.
    """
    ranked = [(number, text) for number, text in shown if number is not None and not math.isnan(number)]
    if column.best is None or len({text for _, text in ranked}) < 2:
        return None, None
    pick = max if column.best == "max" else min
    best = pick(ranked)[1]
    rest = [(number, text) for number, text in ranked if text != best]
    return best, pick(rest)[1] if column.second and len({text for _, text in rest}) > 1 else None


def _headline(text: str) -> str:
    """Return the mean from the text of a mean ± standard deviation."""
    return text.split(" ± ", maxsplit=1)[0]


def cells(table: Table) -> list[list[Cell]]:
    """Return the formatted rows of a table, for any output."""
    columns = []
    for column in table.columns:
        values = [row.get(column.key) for row in table.rows]
        texts = [_show(value, column.format) for value in values]
        numbers = [_number(value) for value in values]
        best, second = _marked(column, [(n, _headline(t)) for n, t in zip(numbers, texts, strict=True)])
        numeric = any(number is not None for number in numbers)
        columns.append(
            [
                Cell(text, numeric, *(n is not None and _headline(text) == mark for mark in (best, second)))
                for text, n in zip(texts, numbers, strict=True)
            ]
        )
    return [list(row) for row in zip(*columns, strict=True)]


def numeric_columns(table: Table, shown: Sequence[Sequence[Cell]]) -> list[bool]:
    """Return for each column whether it is aligned as numbers; all False for a table without rows."""
    return [cell.numeric for cell in shown[0]] if shown else [False] * len(table.columns)


LONGEST = 24
"""Letters: a longer word is broken where a table is too wide for the terminal."""


def rich_table(table: Table) -> RichTable:
    """Return the table for a rich console, with all text taken literally, not as markup."""
    shown = cells(table)
    result = RichTable(
        title=Text(table.caption) if table.caption else None,
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    numeric = numeric_columns(table, shown)
    for place, (column, number) in enumerate(zip(table.columns, numeric, strict=True)):
        # In narrow terminals words wrap, but numbers do not.
        found = [row[place].text for row in shown]
        least = max(map(len, found if number else " ".join(found).split()), default=1)
        result.add_column(
            Text(column.title),
            justify="right" if number else "left",
            no_wrap=number,
            min_width=min(least, LONGEST),
        )
    for row in shown:
        result.add_row(*(Text(cell.text, style=_style(cell)) for cell in row))
    return result


def _style(cell: Cell) -> str:
    return "bold" if cell.best else "italic" if cell.second else ""


def _escape(text: str) -> str:
    """Return text escaped for a Markdown table."""
    for special in "\\|<*`":
        text = text.replace(special, "\\" + special)
    return " ".join(text.split())


def markdown(table: Table) -> str:
    """Return the table in GitHub's Markdown with its caption as a paragraph above it."""
    shown = cells(table)
    lines = [f"{_escape(table.caption)}\n"] if table.caption else []
    lines.append(_row([_escape(column.title) for column in table.columns]))
    lines.append(_row(["---:" if number else "---" for number in numeric_columns(table, shown)]))
    for row in shown:
        lines.append(_row([_markdown_cell(cell) for cell in row]))
    return "\n".join(lines) + "\n"


def _markdown_cell(cell: Cell) -> str:
    mark = "**" if cell.best else "_" if cell.second else ""
    return f"{mark}{_escape(cell.text)}{mark}"


def _row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"

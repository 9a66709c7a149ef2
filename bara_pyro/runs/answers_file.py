"""Write tables of predictions, and recognise files that bara wrote, so that it never replaces any other."""

import csv
import json
import math
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bara_pyro.atomic import atomic_write
from bara_pyro.untrusted.files import check_regular, first_object, read_text
from bara_pyro.untrusted.schemas import MOST_JSON

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")
KEYS = ("id", "label", "total", "aleatoric", "epistemic")
"""Keys of every row of a file of predictions, beside the probabilities of its classes."""

SET_KEYS = ("id", "label", "set", "size")
ABSTENTION_KEYS = ("id", "label", "confidence", "answered")
DETECTION_KEYS = ("id", "p", "foreign")
"""Keys of every row that `bara conformal`, `bara abstain` and `bara detect` write."""

ACQUISITION_KEYS = ("chosen", "total", "epistemic")
"""Keys that `bara acquire` adds to every row."""

REPLY_KEYS = ("id", "number", "reply", "log_prob", "made")
"""Keys of every line of a file of replies."""

JUDGED_KEYS = ("id", "number", "made", "problem_key", "passed")
"""Keys of every line of a file of judged programs."""

REPLY_PAGE = 'data-written-by="bara generate"'
"""Marks a page of replies; text shown on a page is escaped and cannot contain it."""

COMPARISON_PAGE = 'data-written-by="bara compare"'
"""Marks a page that compares two runs."""

WORLD_CARD = "# The microworld"
"""First line of a card that `bara microworld card` writes."""


def _lines_with(keys: tuple[str, ...], path: Path) -> bool:
    """Whether the first line has these keys; an unfinished line must begin with the first key."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            first = file.readline(MOST_JSON)
    except OSError:
        return False
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        begun = json.dumps({keys[0]: ""})[:-3].encode()  # up to its value
        return not first.endswith(b"\n") and (first.startswith(begun) or begun.startswith(first))
    return isinstance(row, dict) and set(keys) <= set(row)


def world_card_in(path: Path) -> bool:
    """Return whether `bara microworld card` wrote a file."""
    try:
        return read_text(path).startswith(f"{WORLD_CARD}\n")
    except (OSError, ValueError):
        return False


def _holds(mark: str, page: Path) -> bool:
    try:
        return f"<div {mark}>" in read_text(page)
    except (OSError, ValueError):
        return False


# Each returns whether bara wrote a file: replies and judged programs (also if it is empty), and pages.
holds_replies, judged_in = partial(_lines_with, REPLY_KEYS), partial(_lines_with, JUDGED_KEYS)
reply_page_in, comparison_page_in = partial(_holds, REPLY_PAGE), partial(_holds, COMPARISON_PAGE)


def answers_in(path: Path, keys: Collection[str] = KEYS) -> bool:
    """Return whether `write_answers` wrote a file, or `write_decisions` with a decision's keys.

    An empty file is not theirs.
    """
    try:
        check_regular(path)
        if path.suffix.lower() == ".parquet":
            import pyarrow.parquet as pq

            return set(keys) <= set(pq.read_schema(path).names)
        if path.suffix.lower() == ".jsonl":
            return set(keys) <= (first_object(path) or {}).keys()
        with path.open(encoding="utf-8", newline="") as file:
            first = file.readline(MOST_JSON)
        headers = (next(csv.reader([first], delimiter=separator), []) for separator in ",;\t")
        return any(set(keys) <= set(header) for header in headers)
    except (OSError, ValueError, csv.Error):  # unreadable, not text, not Parquet
        return False


def write_table(path: Path, frame: "pd.DataFrame", separator: str = ",") -> None:
    """Write a table atomically as .parquet, .tsv, or otherwise .csv with the given separator."""
    suffix, frame = path.suffix.lower(), frame.apply(_written)
    if suffix == ".parquet":
        atomic_write(path, lambda file: frame.to_parquet(file, index=False))
    else:
        separator = "\t" if suffix == ".tsv" else separator
        atomic_write(path, lambda file: frame.to_csv(file, index=False, sep=separator))


def _written(column: "pd.Series") -> "pd.Series":
    """Return a column that a table can hold: lists and mixed cells as JSON, texts as valid Unicode."""
    if column.dtype != object:
        return column
    there = [cell for cell in column if not _empty(cell)]
    texts = all(isinstance(cell, str) for cell in there)
    if there and not texts and len({*map(type, there)}) == 1 and not isinstance(there[0], dict | list):
        return column
    return column.map(_cell)


def _cell(cell: object) -> object:
    if _empty(cell):
        return None
    text = cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
    return text.encode(errors="backslashreplace").decode()


def _empty(cell: object) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))

"""Files of predictions and replies: which ones bara wrote, so that no other is replaced."""

import csv
import json
from collections.abc import Collection
from pathlib import Path

from bara_pyro.untrusted.files import check_regular, first_object, read_text
from bara_pyro.untrusted.schemas import MOST_JSON

KEYS = ("id", "label", "total", "aleatoric", "epistemic")
"""What every row of a file of predictions has, beside the probabilities of its classes."""

SET_KEYS = ("id", "label", "set", "size")
ABSTENTION_KEYS = ("id", "label", "confidence", "answered")
DETECTION_KEYS = ("id", "p", "foreign")
"""What every row of a file of `bara conformal`, `bara abstain` and `bara detect` has."""

ACQUISITION_KEYS = ("chosen", "total", "epistemic")
"""What every row of a file of `bara acquire` has, beside what the row had before."""

REPLY_KEYS = ("id", "number", "reply", "log_prob", "made")
"""What every line of a file of replies has."""

JUDGED_KEYS = ("id", "number", "made", "problem_key", "passed")
"""What every line of a file of judged programs has."""

REPLY_PAGE = 'data-written-by="bara generate"'
"""What a page of replies holds, and no text that is shown on a page can."""

COMPARISON_PAGE = 'data-written-by="bara compare"'
"""The same of a page that compares two runs."""


WORLD_CARD = "# The microworld"
"""The first line of a card of `bara microworld card`."""


def holds_replies(path: Path) -> bool:
    """Return whether a file holds what `bara generate` writes, or nothing."""
    return _lines_with(REPLY_KEYS, path)


def judged_in(path: Path) -> bool:
    """Return whether a file holds judged programs, or nothing."""
    return _lines_with(JUDGED_KEYS, path)


def _lines_with(keys: tuple[str, ...], path: Path) -> bool:
    """Whether the first line has these keys; one that was never finished begins with the first of them."""
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


def reply_page_in(path: Path) -> bool:
    """Return whether a file is a page of replies that bara wrote."""
    return _holds(path, REPLY_PAGE)


def comparison_page_in(path: Path) -> bool:
    """Return whether a file is a page that compares two runs and that bara wrote."""
    return _holds(path, COMPARISON_PAGE)


def world_card_in(path: Path) -> bool:
    """Return whether a file is a card of `bara microworld card`."""
    try:
        return read_text(path).startswith(f"{WORLD_CARD}\n")
    except (OSError, ValueError):
        return False


def _holds(page: Path, mark: str) -> bool:
    try:
        return f"<div {mark}>" in read_text(page)
    except (OSError, ValueError):
        return False


def answers_in(path: Path, keys: Collection[str] = KEYS) -> bool:
    """Return whether a file holds what `runs.answers.write_answers` writes; an empty file does not.

    With the keys of a decision: what `runs.decide.write_decisions` writes.
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

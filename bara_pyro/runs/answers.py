"""Predictions with the columns of their rows, in Python and as files.

Files that bara wrote are recognised by their content, so that it never replaces any other.
"""

import csv
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from bara_pyro.atomic import atomic_write, write_jsonl
from bara_pyro.types import Fields, Json
from bara_pyro.untrusted.files import check_regular, first_object, read_text
from bara_pyro.untrusted.schemas import MOST_JSON

if TYPE_CHECKING:
    import pandas as pd

    from bara_pyro.data.tables import DataTable

SHOWN = 3  # rows that a `repr` prints


@dataclass(frozen=True, repr=False)
class Answers:
    """Predictions of rows.

    Attributes:
        rows: one dictionary per row: its `id`; the predicted `label`, as the data name it; `probs`, the
            probability of each label; `total`, `aleatoric` and `epistemic` uncertainty in nats. An option
            that only other rows have is in brackets and has probability 0.
        notes: remarks on the rows, such as how many were cut.
        given: the columns of each input row.
        classes: the names of the columns of probabilities: labels, or letters if each row lists its options.
    """

    rows: list[Json]
    notes: list[str]
    given: Sequence[Fields] = ()
    classes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        first = [
            f"  {row['id']}: {row['label']} ({max(row['probs'].values()):.3f})" for row in self.rows[:SHOWN]
        ]
        more = ["  ..."] if len(self.rows) > SHOWN else []
        return "\n".join([f"Answers of {len(self.rows)} rows", *first, *more])

    def lines(self) -> list[Json]:
        """Return one dictionary per row: its identifier, its input columns, and its prediction.

        An input column with the same name as a predicted one is renamed to `input_<name>`.
        """
        return with_cells(self.given, self.rows)

    def to_pandas(self) -> "pd.DataFrame":
        """Return the rows as a DataFrame, with a column `prob_<label>` for each class.

        Examples:
            >>> import bara_pyro as bp
            >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=5, limit=40, out="runs/first")
            >>> question = "vome meets bimu . in winter bimu keeps what ? A:goats B:ducks Answer :"
            >>> frame = bp.predict(run, [{"asked_id": "q7", "question": question, "by": "vome"}]).to_pandas()
            >>> [*frame.columns[:4]], frame["id"][0]
            (['id', 'asked_id', 'question', 'by'], 'q7')
        """
        import pandas as pd

        names = [f"prob_{name}" for name in self.classes or [*self.rows[0]["probs"]]]
        flat = []
        for row in self.rows:
            plain = {name: value for name, value in row.items() if name != "probs"}
            flat.append(plain | dict(zip(names, row["probs"].values(), strict=True)))
        return pd.DataFrame(with_cells(self.given, flat))


def with_cells(given: Sequence[Fields], rows: list[Json]) -> list[Json]:
    """Return predictions or decisions with the input columns of their rows, if there are any."""
    return [_beside(*pair) for pair in zip(given, rows, strict=True)] if given else rows


def _beside(given: Fields, said: Json) -> Json:
    """Return a row's prediction with its input columns inserted after the identifier."""
    cells: Json = {}
    for name, cell in given.items():
        if name == "id" and str(cell).strip() == said["id"]:
            continue
        free = name
        while free in said or free in cells:
            free = f"input_{free}"
        cells[free] = cell
    return {"id": said["id"], **cells, **{name: value for name, value in said.items() if name != "id"}}


def carried(table: "DataTable") -> tuple[list[Json], list[str]]:
    """Return the columns of rows that can be written beside predictions, and notes on the others."""
    lost = [name for name in table.columns if not all(_is_json(row.get(name)) for row in table.rows)]
    notes = [f"column {name!r} is not written: not all of it is text, numbers or lists" for name in lost]
    return [{name: cell for name, cell in row.items() if name not in lost} for row in table.rows], notes


def _is_json(cell: object) -> bool:
    if isinstance(cell, dict | list):
        return all(map(_is_json, cell.values() if isinstance(cell, dict) else cell))
    return cell is None or isinstance(cell, str | int | float)


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


def _holds(mark: str, page: Path) -> bool:
    try:
        return f"<div {mark}>" in read_text(page)
    except (OSError, ValueError):
        return False


# Each returns whether bara wrote a file: replies and judged programs (also if it is empty), and pages.
holds_replies, judged_in = partial(_lines_with, REPLY_KEYS), partial(_lines_with, JUDGED_KEYS)
reply_page_in, comparison_page_in = partial(_holds, REPLY_PAGE), partial(_holds, COMPARISON_PAGE)


@dataclass(frozen=True)
class Format:
    """A format of files of predictions and decisions.

    Attributes:
        headers: returns the names of a file's columns, in each way in which it can be read.
        write: writes a table, `(file, frame, separator)`; None if each row is a line of JSON instead.
    """

    headers: Callable[[Path], Iterable[Collection[str]]]
    write: Callable[[BinaryIO, "pd.DataFrame", str], object] | None = None


def _keys(path: Path) -> list[Collection[str]]:
    return [first_object(path) or {}]


def _separated(path: Path) -> Iterator[Collection[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        first = file.readline(MOST_JSON)
    return (next(csv.reader([first], delimiter=separator), []) for separator in ",;\t")


def _schema(path: Path) -> list[Collection[str]]:
    import pyarrow.parquet as pq

    return [pq.read_schema(path).names]


FORMATS = {
    ".jsonl": Format(_keys),
    ".csv": Format(_separated, lambda file, frame, sep: frame.to_csv(file, index=False, sep=sep)),
    ".tsv": Format(_separated, lambda file, frame, _: frame.to_csv(file, index=False, sep="\t")),
    ".parquet": Format(_schema, lambda file, frame, _: frame.to_parquet(file, index=False)),
}
"""The formats by suffix; the command line refuses others, and Python writes CSV."""


def format_of(path: Path) -> Format:
    """Return the format of a file with this name."""
    return FORMATS.get(path.suffix.lower(), FORMATS[".csv"])


def answers_in(path: Path, keys: Collection[str] = KEYS) -> bool:
    """Return whether `write_predictions` wrote a file with these keys; an empty file is not such a file."""
    try:
        check_regular(path)
        return any(set(keys) <= set(header) for header in format_of(path).headers(path))
    except (OSError, ValueError, csv.Error):  # unreadable, not text, not Parquet
        return False


def write_predictions(
    path: str | Path,
    lines: Callable[[], Iterable[Json]],
    table: Callable[[], "pd.DataFrame | list[Json]"],
    separator: str = ",",
) -> None:
    """Write rows atomically, in the format of the file's suffix: what `lines` or `table` returns.

    A CSV file has the given separator.
    """
    path = Path(path)
    write = format_of(path).write
    if write is None:
        write_jsonl(path, lines())
        return
    import pandas as pd

    frame = pd.DataFrame(table()).apply(_written)
    atomic_write(path, lambda file: write(file, frame, separator))


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

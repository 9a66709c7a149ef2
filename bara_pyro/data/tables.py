"""Read a user's rows as plain dictionaries from a file, a DataFrame, a `datasets.Dataset` or a list."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from bara_pyro.data.cells import check_names, label_text, plain_cell, plain_row, shown
from bara_pyro.data.reading import MOST_WHOLE, Rows, csv_rows, objects_in, parse_json, require_rows, text_in
from bara_pyro.errors import DataError
from bara_pyro.types import Fields, Json
from bara_pyro.untrusted.files import require_file
from bara_pyro.untrusted.parquet import batches_in

if TYPE_CHECKING:
    import datasets
    import pandas as pd
    import pyarrow as pa

Data: TypeAlias = Union[
    str, Path, "pd.DataFrame", "pd.Series", "datasets.Dataset", Sequence[Fields], Sequence[str], "DataTable"
]
"""The forms in which rows can be given."""
OTHER_SUFFIXES = (".xlsx", ".xls", ".ods", ".txt", ".xml", ".pkl", ".arrow", ".gz", ".zip")
"""Endings of files that cannot be read; a name with one gets an error about the file type."""


@dataclass(frozen=True)
class DataTable:
    """Rows as plain dictionaries.

    Attributes:
        place: their origin, for errors.
        rows: one dictionary per row; empty cells are None or an empty text.
        classes: column -> its values in order, for columns that define one (a ClassLabel of `datasets`, a
            categorical of pandas).
    """

    place: str
    rows: Rows
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> list[str]:
        """Return the names of all columns, in the order in which they first occur."""
        return list(dict.fromkeys(str(name) for row in self.rows for name in row))


def read_table(data: Data, *, text_column: str = "text") -> DataTable:
    """Return rows as a `DataTable`.

    Args:
        data: the path of a .csv, .tsv, .jsonl, .json (a list of objects) or .parquet file, a DataFrame, a
            `datasets.Dataset`, or a list of dictionaries or texts; a `DataTable` is returned unchanged.
        text_column: the column for plain texts.

    Raises:
        DataError: the file is missing or of another type, there are no rows, or a row cannot be read.
    """
    if isinstance(data, DataTable):
        return data
    if isinstance(data, str) and " " in data and Path(data).suffix.lower() not in SUFFIXES:
        raise DataError(f"{data[:60]!r} is not a file of rows: for a text, give a list of texts.")
    if isinstance(data, str | Path):
        return _read_file(Path(data))
    table = _from_memory(data, text_column)
    if not table.rows:
        raise DataError(f"The {table.place} is empty: give at least one row.")
    return table


def _read_file(path: Path) -> DataTable:
    if path.suffix.lower() == ".parquet":
        return _parquet(path)  # with the classes that its columns define
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise other_kind(path)
    return DataTable(str(path), require_rows(list(_plain_rows(reader(path), str(path))), path))


def other_kind(name: str | Path) -> DataError:
    """Return the error for a file of a type that cannot be read."""
    kinds = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
    return DataError(f"{name} is not a {kinds} file: save it as one of these (in Excel: CSV UTF-8).")


def _parse_list(path: Path) -> Rows:
    values = parse_json(text_in(path), path)
    if not isinstance(values, list):
        raise DataError(f"{path} must hold a list of objects: if it has one per line, name it .jsonl.")
    for number, value in enumerate(values, start=1):
        if not isinstance(value, dict):
            raise DataError(f"{path}, row {number} is not a JSON object: {value!r}.")
    return require_rows(values, path)


def _parquet(path: Path) -> DataTable:
    import pyarrow as pa

    with _as_parquet(path) as schema:
        table = _from_arrow(pa.Table.from_batches(batches_in(path, MOST_WHOLE), schema), path)
    require_rows(table.rows, path)
    return table


READERS: dict[str, Callable[[Path], Iterable[Json]]] = {
    ".csv": csv_rows,
    ".tsv": csv_rows,
    ".jsonl": objects_in,
    ".json": _parse_list,
}
"""The function that yields the rows of a file, by its suffix."""
SUFFIXES = (*READERS, ".parquet")


def _from_arrow(table: "pa.Table", path: Path) -> DataTable:
    """Return the rows of an Arrow table, which may be one that `datasets` wrote."""
    if b"huggingface" in (table.schema.metadata or {}):
        import datasets

        features = datasets.Features.from_arrow_schema(table.schema)
        return _from_dataset(datasets.Dataset(table.cast(features.arrow_schema)), str(path))
    return DataTable(str(path), [plain_row(row) for row in table.to_pylist()], _categories(table))


def _categories(table: "pa.Table") -> dict[str, tuple[str, ...]]:
    """Return the values, in order, of the columns that were categoricals of pandas."""
    import pyarrow as pa

    about = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    columns = about.get("columns", ())
    categorical = {one["field_name"] for one in columns if one["pandas_type"] == "categorical"}
    by_column = {}
    for name in table.column_names:
        if name in categorical and pa.types.is_dictionary(table.schema.field(name).type):
            [chunk, *_] = table[name].unify_dictionaries().chunks or [None]
            by_column[name] = _named(chunk.dictionary.to_pylist()) if chunk else ()
    return {name: values for name, values in by_column.items() if values}


def _named(categories: Iterable[object]) -> tuple[str, ...]:
    """Return the values of a categorical as texts; none if one of them is neither text nor number."""
    values = [plain_cell(value) for value in categories]
    return tuple(map(label_text, values)) if all(isinstance(v, str | int | float) for v in values) else ()


@contextmanager
def _as_parquet(path: Path) -> Iterator["pa.Schema"]:
    """Yield the schema of a Parquet file; errors within this context become a `DataError` that names it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    require_file(path)
    try:
        schema = pq.read_schema(path)
        check_names(schema.names, str(path))
        yield schema
    except DataError:  # it is also a ValueError
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read as Parquet: {str(error).splitlines()[0].split('. ')[0].rstrip('.')}."
        ) from error


def _from_memory(data: object, text_column: str) -> DataTable:
    if isinstance(data, list | tuple):  # first, because pandas and datasets take a second to import
        return _from_list(data, text_column)

    import datasets
    import pandas as pd

    if isinstance(data, pd.DataFrame):
        _check_frame(data)
        categories = {
            str(name): found
            for name, column in data.items()
            if isinstance(column.dtype, pd.CategoricalDtype) and (found := _named(column.cat.categories))
        }
        return DataTable("DataFrame", list(_plain_rows(data.to_dict("records"), "DataFrame")), categories)
    if isinstance(data, datasets.Dataset):
        return _from_dataset(data, "Dataset")
    if isinstance(data, Mapping):
        splits = ", ".join(map(repr, data))
        raise DataError(
            f"The rows are a dictionary with the keys {splits}: give a list of rows, or one of its splits."
        )
    if isinstance(data, Iterable) and not isinstance(data, bytes):
        return _from_list(list(data), text_column)
    raise DataError(
        f"Rows cannot be read from a {type(data).__name__}: give a file, a DataFrame, a Dataset or a list of "
        "dictionaries or texts."
    )


def _from_list(rows: Sequence[object], text_column: str) -> DataTable:
    if rows and all(isinstance(row, str) for row in rows):
        rows = [{text_column: row} for row in rows]
    return DataTable("list of rows", list(_plain_rows(rows, "list of rows")))


def _check_frame(frame: "pd.DataFrame") -> None:
    """Refuse columns that cannot be the keys of a dictionary per row."""
    if frame.columns.nlevels > 1:
        raise DataError(
            f"The DataFrame has columns of {frame.columns.nlevels} levels, such as {frame.columns[0]!r}: "
            "give each one name, frame.columns = [...]."
        )
    check_names(frame.columns, "The DataFrame")


def _from_dataset(dataset: "datasets.Dataset", place: str) -> DataTable:
    """Return the rows of a `datasets.Dataset`, classes by their names; -1, "no answer", becomes None."""
    import datasets

    features = dataset.features
    named = {name: list(f.names) for name, f in features.items() if isinstance(f, datasets.ClassLabel)}
    rows = [plain_row(row) for row in dataset.to_list()]
    for row in rows:
        for name, names in named.items():
            place_of = row[name]
            row[name] = None if place_of is None or place_of < 0 else names[place_of]
    return DataTable(place, rows, {name: tuple(names) for name, names in named.items()})


def _plain_rows(rows: Iterable[object], place: str) -> Iterator[Json]:
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise DataError(f"The {place}, row {number} is not a dictionary: {shown(row)}.")
        try:
            plain = plain_row(row)
        except DataError as error:
            raise DataError(f"{place}, row {number}: {error}") from None
        except RecursionError as error:
            raise DataError(f"{place}, row {number} is nested too deeply: use texts and lists.") from error
        yield plain

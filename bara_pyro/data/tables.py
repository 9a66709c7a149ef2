"""Read a user's rows as plain dictionaries from a file, a DataFrame, a `datasets.Dataset` or a list."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union
from uuid import UUID

import numpy as np

from bara_pyro.data.reading import (
    MOST_WHOLE,
    Rows,
    check_names,
    csv_rows,
    objects_in,
    parse_json,
    text_in,
    unique_keys,
)
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
    """Rows as plain dictionaries; no rows raise a `DataError`.

    Attributes:
        place: their origin, for errors.
        rows: one dictionary per row; empty cells are None or an empty text.
        classes: column -> its values in order, for columns that define them (a ClassLabel of `datasets`, a
            categorical of pandas); empty if one is neither text nor number.
    """

    place: str
    rows: Rows
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.rows:
            raise DataError(f"{self.place} is empty: give at least one row.")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> list[str]:
        """Return the names of all columns, in the order in which they first occur."""
        return list(dict.fromkeys(name for row in self.rows for name in row))


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
    return _from_memory(data, text_column)


def _read_file(path: Path) -> DataTable:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet(path)  # with the classes that its columns define
    if suffix not in READERS:
        raise other_kind(path)
    return DataTable(str(path), _plain_rows(READERS[suffix](path), str(path)))


def other_kind(name: str | Path) -> DataError:
    """Return the error for a file of a type that cannot be read."""
    kinds = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
    return DataError(f"{name} is not a {kinds} file: save it as one of these (in Excel: CSV UTF-8).")


def _parse_list(path: Path) -> Rows:
    values = parse_json(text_in(path), path)
    if not isinstance(values, list):
        raise DataError(f"{path} must hold a list of objects: if it has one per line, name it .jsonl.")
    return values


READERS: dict[str, Callable[[Path], Iterable[Json]]] = {
    ".csv": csv_rows,
    ".tsv": csv_rows,
    ".jsonl": objects_in,
    ".json": _parse_list,
}
"""The function that yields the rows of a file, by its suffix."""
SUFFIXES = (*READERS, ".parquet")


def _parquet(path: Path) -> DataTable:
    """Return the rows of a Parquet file, which `datasets` or pandas may have written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    require_file(path)
    try:
        schema = pq.read_schema(path)
        check_names(schema.names, str(path))
        table = pa.Table.from_batches(batches_in(path, MOST_WHOLE), schema)
        if b"huggingface" not in (schema.metadata or {}):
            return DataTable(str(path), [plain_row(row) for row in table.to_pylist()], _categories(table))

        import datasets

        features = datasets.Features.from_arrow_schema(schema)
        return _from_dataset(datasets.Dataset(table.cast(features.arrow_schema)), str(path))
    except DataError:  # it is also a ValueError
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read as Parquet: {str(error).splitlines()[0].split('. ')[0].rstrip('.')}."
        ) from error


def _categories(table: "pa.Table") -> dict[str, tuple[str, ...]]:
    """Return the values, in order, of the columns that were categoricals of pandas."""
    import pyarrow as pa

    about = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    columns = about.get("columns", ())
    categorical = {one["field_name"] for one in columns if one["pandas_type"] == "categorical"}
    by_column = {}
    for name in table.column_names:
        if name in categorical and pa.types.is_dictionary(table.schema.field(name).type):
            for chunk in table[name].unify_dictionaries().chunks[:1]:
                by_column[name] = _named(chunk.dictionary.to_pylist())
    return by_column


def _named(categories: Iterable[object]) -> tuple[str, ...]:
    """Return the values of a categorical as texts; none if one of them is neither text nor number."""
    values = [plain_cell(value) for value in categories]
    return tuple(map(label_text, values)) if all(isinstance(v, str | int | float) for v in values) else ()


def _from_memory(data: object, text_column: str) -> DataTable:
    if not isinstance(data, list | tuple):  # pandas and datasets take a second to import
        import datasets
        import pandas as pd

        if isinstance(data, pd.DataFrame):
            return _from_frame(data)
        if isinstance(data, datasets.Dataset):
            return _from_dataset(data, "Dataset")
        if isinstance(data, Mapping):
            splits = ", ".join(map(repr, data))
            raise DataError(
                f"The rows are a dictionary with the keys {splits}: give a list of rows, or one of its "
                "splits."
            )
        if not isinstance(data, Iterable) or isinstance(data, bytes):
            raise DataError(
                f"Rows cannot be read from a {type(data).__name__}: give a file, a DataFrame, a Dataset or a "
                "list of dictionaries or texts."
            )
    rows = list(data)
    if all(isinstance(row, str) for row in rows):
        rows = [{text_column: row} for row in rows]
    return DataTable("list of rows", _plain_rows(rows, "list of rows"))


def _from_frame(frame: "pd.DataFrame") -> DataTable:
    import pandas as pd

    if frame.columns.nlevels > 1:
        raise DataError(
            f"The DataFrame has columns of {frame.columns.nlevels} levels, such as {frame.columns[0]!r}: "
            "give each one name, frame.columns = [...]."
        )
    check_names([*map(str, frame.columns)], "The DataFrame")
    categories = {
        str(name): _named(column.cat.categories)
        for name, column in frame.items()
        if isinstance(column.dtype, pd.CategoricalDtype)
    }
    return DataTable("DataFrame", _plain_rows(frame.to_dict("records"), "DataFrame"), categories)


def _from_dataset(dataset: "datasets.Dataset", place: str) -> DataTable:
    """Return the rows of a `datasets.Dataset`, classes by their names; -1, "no answer", becomes None."""
    import datasets

    features = dataset.features
    named = {name: tuple(f.names) for name, f in features.items() if isinstance(f, datasets.ClassLabel)}
    rows = [plain_row(row) for row in dataset.to_list()]
    for row in rows:
        for name, names in named.items():
            place_of = row[name]
            row[name] = None if place_of is None or place_of < 0 else names[place_of]
    return DataTable(place, rows, named)


def _plain_rows(rows: Iterable[object], place: str) -> Rows:
    plain = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise DataError(f"{place}, row {number} is not a dictionary of columns: {row!r:.60}.")
        try:
            plain.append(plain_row(row))
        except DataError as error:
            raise DataError(f"{place}, row {number}: {error}") from None
        except RecursionError as error:
            raise DataError(f"{place}, row {number} is nested too deeply: use texts and lists.") from error
    return plain


AS_TEXT = (date, time, timedelta, Decimal, UUID)


def plain_row(row: Mapping[Any, object]) -> Json:
    """Return a row with its cells as JSON values; a `DataError` if two columns have the same name as text."""
    return unique_keys([(str(name), plain_cell(value)) for name, value in row.items()])


def plain_cell(value: object) -> Any:
    """Return a cell as a JSON value; NaN, NaT and pandas' NA become empty cells.

    Bytes that are not UTF-8 and objects of other types are returned unchanged; the code that needs the cell
    refuses them.
    """
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return plain_row(value)
    if isinstance(value, list | tuple):
        return [plain_cell(item) for item in value]
    if isinstance(value, np.floating):
        return plain_cell(float(str(value)))  # 0.1 of float32 is 0.1, not 0.10000000149
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return str.__str__(value)  # a member of a string enumeration would print its name
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and math.isnan(value)):
        return None
    of_pandas = type(value).__module__.partition(".")[0] == "pandas"  # an interval, a period
    return str(value) if isinstance(value, AS_TEXT) or of_pandas else value


def label_text(value: object, what: str = "A label") -> str:
    """Return a label as text; whole numbers lose their decimals, so 1.0 becomes "1".

    Anything but a text or a number raises a `DataError` that calls it `what`.
    """
    if isinstance(value, str):
        return value.strip()
    if not isinstance(value, int | float):
        raise DataError(f"{what} is {value!r:.60}: give one text or number per row.")
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def missing(value: object) -> bool:
    """Return whether a cell is empty."""
    return value is None or (isinstance(value, str) and not value.strip())


def text_field(row: Fields, key: str) -> str:
    """Return `row[key]`, stripped; raise a `DataError` if it is absent, empty or not a text."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"it has no text in {key!r} (found {value!r:.60}): give one, or leave the row out.")
    return value.strip()

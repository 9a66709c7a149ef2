"""Convert cells of a table to JSON values, and to the text that a person reads."""

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from bara_pyro.errors import DataError
from bara_pyro.types import Fields, Json

# Characters that cannot be seen: soft hyphens, zero-width spaces, marks of direction and byte order. Joiners,
# selectors and tags do not belong here, because emoji and whole scripts need them.
INVISIBLE = re.compile(r"[\x00-\x08\x7f\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
AS_TEXT = (date, time, timedelta, Decimal, UUID)


def plain_row(row: Mapping[Any, object]) -> Json:
    """Return a row with its cells as JSON values; a `DataError` if two columns have the same name as text."""
    plain: Json = {}
    for key, value in row.items():
        if (name := str(key)) in plain:
            raise DataError(f"it has two columns called {name!r}: rename one.")
        plain[name] = plain_cell(value)
    return plain


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
        raise DataError(f"{what} is {shown(value)}: give one text or number per row.")
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def shown(value: object) -> str:
    """Return the beginning of a value's `repr`, for an error message."""
    return repr(value)[:60]


def as_read(text: str) -> str:
    """Return a text without invisible characters, so that texts that look the same are equal."""
    visible = INVISIBLE.sub("", unicodedata.normalize("NFC", text))
    return "".join(" " if unicodedata.category(sign) == "Zs" else sign for sign in visible).strip()


def check_names(names: Iterable[object], place: str) -> None:
    """Raise a `DataError` for two columns of the same name, of which only the last would be read."""
    seen: set[str] = set()
    for name in map(str, names):
        if name in seen:
            raise DataError(f"{place} has two columns called {name!r}: rename one.")
        seen.add(name)


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> Json:
    """Return a JSON object, an `object_pairs_hook` for `json.loads`; a `DataError` if a key occurs twice."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise DataError(f"it has two values for {double!r} in one object: leave one out.")
    return mapping


def missing(value: object) -> bool:
    """Return whether a cell is empty."""
    return value is None or (isinstance(value, str) and not value.strip())


def text_field(row: Fields, key: str) -> str:
    """Return `row[key]`, stripped; raise a `DataError` if it is absent, empty or not a text."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"it has no text in {key!r} (found {shown(value)}): give one, or leave the row out.")
    return value.strip()

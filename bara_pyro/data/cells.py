"""What a cell of a table holds: a value as JSON would hold it, and the text that a person reads it as."""

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
from bara_pyro.types import Json

# Characters without a sign of their own: soft hyphens, spaces of no width, marks of direction and of byte
# order. Joiners, selectors and tags are none of them: emoji and whole scripts are written with these.
INVISIBLE = re.compile(r"[\x00-\x08\x7f\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
AS_TEXT = (date, time, timedelta, Decimal, UUID)


def plain_row(row: Mapping[Any, object]) -> Json:
    """Return a row with its cells as JSON would hold them.

    Raises:
        DataError: two of its columns have one name as texts.
    """
    plain: Json = {}
    for key, value in row.items():
        if (name := str(key)) in plain:
            raise DataError(f"it has two columns called {name!r}: rename one.")
        plain[name] = plain_cell(value)
    return plain


def plain_cell(value: object) -> Any:
    """Return a cell as JSON would hold it; NaN, NaT and pandas' NA are empty cells.

    Bytes that are no UTF-8 and objects of other kinds stay what they are, for whoever reads them to refuse.
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
        return str.__str__(value)  # a member of an enumeration of texts prints its own name
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
    """Return a cell as the text that a user reads it as: 1.0 is 1, whatever column it stood in.

    Args:
        value: a text, a number, True or False.
        what: it is, for the error.

    Raises:
        DataError: it is anything else.
    """
    if isinstance(value, str):
        return value.strip()
    if not isinstance(value, int | float):
        raise DataError(f"{what} is {shown(value)}: give one text or number a row.")
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def shown(value: object) -> str:
    """Return the beginning of a value as an error prints it."""
    return repr(value)[:60]


def as_read(text: str) -> str:
    r"""Return a text without what cannot be seen in it: texts that read the same are then the same.

    Examples:
        >>> from bara_pyro.data.cells import as_read
        >>> as_read("very\u00a0good\u200b") == "very good"
        True
    """
    visible = INVISIBLE.sub("", unicodedata.normalize("NFC", text))
    return "".join(" " if unicodedata.category(sign) == "Zs" else sign for sign in visible).strip()


def check_names(names: Iterable[object], place: str) -> None:
    """Refuse columns of which two have one name as texts, of which only the last would be read.

    Raises:
        DataError: there are two.
    """
    seen: set[str] = set()
    for name in map(str, names):
        if name in seen:
            raise DataError(f"{place} has two columns called {name!r}: rename one.")
        seen.add(name)


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> Json:
    """Return an object of JSON (`json.loads`, `object_pairs_hook`), of which each key stands there once.

    Raises:
        DataError: one stands there twice, and the last value alone would be read.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise DataError(f"it has two values for {double!r} in one object: leave one out.")
    return found

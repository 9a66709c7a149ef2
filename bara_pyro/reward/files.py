"""Files of replies to score, and which files of scores are ours."""

import json
from pathlib import Path

from bara_pyro.data.conversations import Conversation, conversations_in
from bara_pyro.data.reading import Rows
from bara_pyro.data.tables import Data, Table, read_table
from bara_pyro.errors import DataError

COLUMN, JUDGE = "score", "judge"
REPLIES = ("reply", "completion")


def replies_in(data: Data) -> tuple[Rows, list[Conversation]]:
    """Return the rows of a file as they are, and the prompt with the reply of each.

    Args:
        data: what `data.tables.read_table` reads; rows have `prompt`, a text or messages, and a text in
            `reply` or `completion`.

    Raises:
        DataError: a file that cannot be read, a row without one of them, or with a column `score` or `judge`
            already.
    """
    table = read_table(data)
    for number, row in enumerate(table.rows, 1):
        where = f"row {number} of {table.place}"
        for ours in (COLUMN, JUDGE):
            if ours in row:
                raise DataError(f"There is a column {ours!r} in {where} already: rename it.")
        found = next((name for name in REPLIES if row.get(name) is not None), None)
        if found is None or row.get("prompt") is None:
            missing = "prompt" if found is not None else "reply"
            raise DataError(
                f"There is no {missing!r} in {where}, which has {', '.join(map(str, row)) or 'no columns'}: "
                "give 'prompt', and 'reply' or 'completion'."
            )
        if not isinstance(row[found], str):
            raise DataError(f"{found!r} of {where} is {str(row[found])[:60]!r}: give a text.")
    told = [
        {"prompt": row["prompt"], "completion": next(row[n] for n in REPLIES if row.get(n) is not None)}
        for row in table.rows
    ]
    return table.rows, conversations_in(Table(table.place, told), "row")


def scores_in(path: Path) -> bool:
    """Return whether a file holds rows with scores, as `bara reward score` writes them."""
    try:
        with path.open(encoding="utf-8") as file:
            row = json.loads(file.readline())
    except (OSError, ValueError):  # unreadable, not text, not JSON
        return False
    return isinstance(row, dict) and isinstance(row.get(COLUMN), float) and "prompt" in row

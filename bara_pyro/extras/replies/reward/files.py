"""Files of replies to score, and which files of scores are ours."""

from pathlib import Path

from bara_pyro.data.conversations import Conversation, conversations_in
from bara_pyro.data.messages import PROMPTS, SYSTEM_COLUMNS
from bara_pyro.data.reading import Rows
from bara_pyro.data.rows import column_in
from bara_pyro.data.tables import Data, DataTable, read_table
from bara_pyro.data.tools import GIVEN
from bara_pyro.errors import DataError
from bara_pyro.untrusted.files import first_object

COLUMN, JUDGE = "score", "judge"
REPLIES = ("reply", "completion", "output")


def replies_in(data: Data) -> tuple[Rows, list[Conversation]]:
    """Return the rows of a file as they are, and the prompt with the reply of each.

    Args:
        data: what `data.tables.read_table` reads; rows have `prompt`, a text or messages, and a text in
            `reply` or `completion`; or, as AlpacaEval has them, `instruction` and `output`. What a column
            `input` holds beside an `instruction` is put below it.

    Raises:
        DataError: a file that cannot be read, a row without one of them, or with a column `score` or `judge`
            already.
    """
    table = read_table(data)
    told: Rows = []
    for number, row in enumerate(table.rows, 1):
        where = f"row {number} of {table.place}"
        for ours in (COLUMN, JUDGE):
            if ours in row:
                raise DataError(f"There is a column {ours!r} in {where} already: rename it.")
        found, asked = column_in(row, REPLIES), column_in(row, PROMPTS)
        if found is None or asked is None:
            missing = "prompt" if found is not None else "reply"
            raise DataError(
                f"There is no {missing!r} in {where}, which has {', '.join(map(str, row)) or 'no columns'}: "
                "give 'prompt' (or 'instruction'), and 'reply', 'completion' or 'output'."
            )
        if not isinstance(row[found], str):
            raise DataError(f"{found!r} of {where} is {str(row[found])[:60]!r}: give a text.")
        beside = {name: row.get(name) for name in ("input", *SYSTEM_COLUMNS, *GIVEN)}
        told.append({asked: row[asked], **beside, "completion": row[found]})
    return table.rows, conversations_in(DataTable(table.place, told), "row")


def scores_in(path: Path) -> bool:
    """Return whether a file holds rows with scores, as `bara reward score` writes them."""
    row = first_object(path) or {}
    return isinstance(row.get(COLUMN), float) and bool({"prompt", JUDGE} & row.keys())

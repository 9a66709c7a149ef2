"""Read replies to score, and recognise files with scores."""

from pathlib import Path

from bara_pyro.data.conversations import PROMPTS, SYSTEM_COLUMNS, UNREAD, Conversation, conversations_in
from bara_pyro.data.reading import Rows
from bara_pyro.data.rows import column_in
from bara_pyro.data.tables import Data, DataTable, read_table
from bara_pyro.errors import DataError
from bara_pyro.untrusted.files import first_object

COLUMN, JUDGE = "score", "judge"
REPLIES = ("reply", "completion", "output")


def replies_in(data: Data) -> tuple[Rows, list[Conversation]]:
    """Return the unchanged rows of a file, and the prompt and reply of each row.

    Args:
        data: anything that `data.tables.read_table` reads. Rows have a `prompt` (a text or messages) and a
            text in `reply` or `completion`; or `instruction` and `output`, as in AlpacaEval. A column `input`
            is appended to its `instruction`.

    Raises:
        DataError: the file cannot be read, a row has no prompt or reply, or a column `score` or `judge`
            exists already.
    """
    table = read_table(data)
    rows: Rows = []
    for number, row in enumerate(table.rows, 1):
        where = f"row {number} of {table.place}"
        for ours in (COLUMN, JUDGE):
            if ours in row:
                raise DataError(f"There is already a column {ours!r} in {where}: rename it.")
        reply, prompt = column_in(row, REPLIES), column_in(row, PROMPTS)
        if reply is None or prompt is None:
            missing = "prompt" if reply is not None else "reply"
            raise DataError(
                f"There is no {missing!r} in {where}, which has {', '.join(map(str, row)) or 'no columns'}: "
                "give 'prompt' (or 'instruction'), and 'reply', 'completion' or 'output'."
            )
        if not isinstance(row[reply], str):
            raise DataError(f"{reply!r} of {where} is {str(row[reply])[:60]!r}: give a text.")
        beside = {name: row.get(name) for name in ("input", *SYSTEM_COLUMNS, *UNREAD)}
        rows.append({prompt: row[prompt], **beside, "completion": row[reply]})
    return table.rows, conversations_in(DataTable(table.place, rows), "row")


def scores_in(path: Path) -> bool:
    """Return whether a file contains rows with scores, as `bara reward score` writes them."""
    row = first_object(path) or {}
    return isinstance(row.get(COLUMN), float) and bool({"prompt", JUDGE} & row.keys())

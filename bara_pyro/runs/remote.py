"""Predict rows with a run that `bara serve` has loaded, in a process that loads no model."""

import http.client
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.runs.answers import Answers, carried
from bara_pyro.types import Fields, Json
from bara_pyro.untrusted.files import bounded_json

if TYPE_CHECKING:
    from bara_pyro.data.tables import Data

SCHEMES = ("http://", "https://")
ROWS = 256  # rows of a request, by default sixteen times fewer than a server holds
MOST_BYTES = 2**26  # of a reply
TIMEOUT = 600.0  # seconds without a byte from the server
KEYS = ("id", "label", "probs", "total", "aleatoric", "epistemic")


def is_address(run: object) -> bool:
    """Return whether a run is given as the address of a server."""
    return isinstance(run, str) and run.startswith(SCHEMES)


def predict_remotely(address: str, data: "Data", on_rows: Callable[[int], object] | None = None) -> Answers:
    """Predict the answers of rows with the run, the draws and the seed of a server.

    Rows without identifiers are named `row-1`, `row-2`, ..., as in `predict`, so that a row gets the answer
    that it would get without a server. The columns have the names of the training rows.

    Raises:
        ConfigError: no server of `bara serve` answers at the address, or it is too busy.
        DataError: the rows cannot be read, or the server refuses them.
    """
    server = _Endpoint(address)
    rows = _rows(data, server.ask("GET", "/health").get("text_column", "text"))
    answers: list[Json] = []
    notes: dict[str, None] = {}
    for part in (rows[first : first + ROWS] for first in range(0, len(rows), ROWS)):
        reply = server.ask("POST", "/uncertainty", {"rows": part})
        answers += server.rows(reply, len(part))
        notes |= dict.fromkeys(map(str, reply.get("notes", ())))
        if on_rows is not None:
            on_rows(len(part))
    [(row_id, count)] = Counter(row["id"] for row in answers).most_common(1)
    if count > 1:
        raise DataError(f"{count} rows have the id {row_id!r}: give each row a different id.")
    return Answers(answers, [*notes], rows, tuple(answers[0]["probs"]))


def _rows(data: "Data", text_column: str) -> Sequence[Fields]:
    """Return the rows to send, each with an id."""
    if isinstance(data, list) and data and all(isinstance(text, str) for text in data):
        return [{"id": f"row-{i}", text_column: text} for i, text in enumerate(data, start=1)]

    # These load torch, which texts do not need.
    from bara_pyro.data.columns import id_column
    from bara_pyro.data.tables import read_table

    rows, _ = carried(read_table(data, text_column=text_column))
    if any("id" in row for row in rows) or id_column([rows], [text_column]) is not None:
        return rows
    return [{"id": f"row-{i}", **row} for i, row in enumerate(rows, start=1)]


class _Endpoint:
    """The address of a server, and what is read from it."""

    def __init__(self, address: str) -> None:
        self.address = address
        try:
            self.url: SplitResult = urlsplit(address)
            named = bool(self.url.hostname) and self.url.port != 0
        except ValueError:
            named = False
        if not named or self.url.query or self.url.fragment:
            raise ConfigError(
                f"{address!r} is not the address of a server: give one such as http://127.0.0.1:8000."
            )

    def rows(self, reply: Json, count: int) -> list[Json]:
        """Return the rows of a reply, checked to be answers to `count` rows."""
        rows = reply.get("rows")
        if not isinstance(rows, list) or len(rows) != count:
            raise self._stranger()
        if not all(isinstance(row, dict) and set(KEYS) <= set(row) for row in rows):
            raise self._stranger()
        return [{key: row[key] for key in KEYS} for row in rows]

    def ask(self, method: str, path: str, content: Json | None = None) -> Json:
        """Return the server's answer to a request, with JSON if it is given."""
        secure = self.url.scheme == "https"
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = connect(self.url.hostname or "", self.url.port, timeout=TIMEOUT)
        try:
            body = None if content is None else json.dumps(content).encode()
            headers = {} if content is None else {"Content-Type": "application/json"}
            connection.request(method, self.url.path.rstrip("/") + path, body, headers)
            response = connection.getresponse()
            status, answer = response.status, response.read(MOST_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ConfigError(
                f"No server answers at {self.address} ({why}): start it with `bara serve RUN`."
            ) from error
        finally:
            connection.close()
        reply = self._parsed(answer)
        if status == http.HTTPStatus.OK:
            return reply
        if not isinstance(reply.get("error"), str):
            raise self._stranger()
        kind = DataError if status in (400, 413, 422) else ConfigError
        raise kind(f"The server at {self.address} answers: {reply['error']}")

    def _parsed(self, content: bytes) -> dict[str, Any]:
        try:
            reply = bounded_json(content.decode()) if len(content) <= MOST_BYTES else None
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise self._stranger()
        return reply

    def _stranger(self) -> ConfigError:
        return ConfigError(
            f"What answers at {self.address} is not this version's `bara serve`: check the address."
        )

"""Define the JSON of requests and replies, and parse requests."""

import json
from typing import Any

from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, Field

from bara_pyro.extras.serve.http.engine import Answer
from bara_pyro.types import Fields, Json


class RowRequest(BaseModel):
    """A request: rows with the run's training columns, or with other usual column names."""

    model_config = ConfigDict(extra="forbid")

    rows: list[dict[str, Any]] = Field(
        min_length=1,
        description="one object per question, as in a file for `bara predict`; `id` is optional",
        examples=[[{"id": "1", "question": "is the fox red ?"}]],
    )


class RowsResponse(BaseModel):
    """Fields of every reply other than its rows."""

    samples: int = Field(description="posterior draws S; 0 for the posterior mean")
    notes: list[str] = Field(description="notes on the rows, for example on a text that was shortened")


class Row(BaseModel):
    """Fields of every row of a reply."""

    id: str


class ProbabilityRow(Row):
    """The posterior predictive of a question."""

    label: str = Field(description="the most probable class")
    probs: dict[str, float]


class UncertaintyRow(ProbabilityRow):
    """The posterior predictive and its uncertainty, in nats: total = aleatoric + epistemic."""

    total: float
    aleatoric: float
    epistemic: float


class DrawRow(Row):
    """The probabilities of a question under each draw of the posterior."""

    classes: list[str]
    draws: list[list[float]] = Field(description="S lists with one probability per class")


class Probabilities(RowsResponse):
    """Reply of `/probabilities`."""

    rows: list[ProbabilityRow]


class Uncertainties(RowsResponse):
    """Reply of `/uncertainty`."""

    rows: list[UncertaintyRow]


class DrawsReply(RowsResponse):
    """Reply of `/draws`."""

    rows: list[DrawRow]


class Refusal(BaseModel):
    """Reply to a refused request."""

    error: str = Field(description="what is wrong with the request and how to fix it")


def probability_row(answer: Answer) -> Json:
    """Return a row of the reply of `/probabilities`."""
    return {key: answer.said[key] for key in ("id", "label", "probs")}


def draw_row(answer: Answer) -> Json:
    """Return a row of the reply of `/draws`."""
    return {"id": answer.said["id"], "classes": list(answer.classes), "draws": answer.draws}


JSON_TYPE = "with Content-Type: application/json"
SHOWN = 60  # most characters quoted from a request
MOST_KEYS = 1000
"""Most distinct keys in the rows of a request."""


def is_json(content_type: str) -> bool:
    """Return whether a content type is exactly JSON, not for example `application/problem+json`."""
    return content_type.partition(";")[0].strip().lower() == "application/json"


def right_form(column: str) -> str:
    """Return advice on what to send, for the end of an error message.

    Args:
        column: key of a row's text.
    """
    return f'send {{"rows": [{{{json.dumps(column)}: "..."}}]}}'


def request_rows(body: bytes, form: str) -> list[Fields]:
    """Return the rows of a request.

    Pydantic is not used here because it collects every mistake, and an 8 MiB request may hold four million.

    `form` is advice on what to send (`right_form`).

    Raises:
        HTTPException: 400 if the body is not JSON, 422 if it does not contain rows.
    """
    body_value = _parsed(body, form)
    if body_value is None:
        raise HTTPException(422, f"The request is empty (no body, or null): {form} {JSON_TYPE}.")
    if not isinstance(body_value, dict):
        raise HTTPException(422, f"The request is {_shown(body_value)}, not an object: {form}.")
    if "rows" not in body_value:
        raise HTTPException(422, f"The request has no 'rows': {form}.")
    for key in body_value:
        if key != "rows":
            raise HTTPException(
                422, f"The request has an unknown key {key[:SHOWN]!r}: {form} and nothing else."
            )
    rows = body_value["rows"]
    if not isinstance(rows, list) or not rows:
        raise HTTPException(422, f"The rows are {_shown(rows)}: {form}, with at least one row.")
    keys: set[str] = set()
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise HTTPException(422, f"Row {number} is {_shown(row)}, not an object: {form}.")
        keys.update(row)
        if len(keys) > MOST_KEYS:
            raise HTTPException(422, f"Rows 1 to {number} have more than {MOST_KEYS} different keys: {form}.")
    return rows


def _parsed(body: bytes, form: str) -> object:
    """Return a body as parsed JSON, or None if it is empty."""
    try:
        return json.loads(body) if body else None
    except json.JSONDecodeError as error:
        raise HTTPException(
            400, f"The request is not JSON ({error.msg} at character {error.pos}): {form}."
        ) from error
    except UnicodeDecodeError as error:
        raise HTTPException(
            400, f"The request is not UTF-8 text (byte {error.start}): {form}, encoded as UTF-8."
        ) from error
    except RecursionError as error:
        raise HTTPException(400, f"The request is nested too deeply: {form}.") from error
    except ValueError as error:  # Python limits the digits of an integer
        raise HTTPException(400, f"The request holds a number that is too long: {form}.") from error


def _shown(value: object) -> str:
    """Return the first characters of a value as JSON."""
    if isinstance(value, str):
        value = value[:SHOWN]
    parts, size = [], 0
    for part in json.JSONEncoder().iterencode(value):
        parts.append(part[:SHOWN])
        size += len(part)
        if size > SHOWN:
            break
    text = "".join(parts)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."

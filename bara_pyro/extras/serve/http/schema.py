"""What is sent to a server and what it sends back, as JSON; what is wrong with a request, in a sentence."""

import json
from typing import Any

from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, Field

from bara_pyro.extras.serve.http.engine import Answer
from bara_pyro.types import Fields, Json


class RowRequest(BaseModel):
    """A request: rows with the columns that the run was trained on, or others of a usual name."""

    model_config = ConfigDict(extra="forbid")

    rows: list[dict[str, Any]] = Field(
        min_length=1,
        description="one object a question, as a line of the file of `bara predict`; `id` is optional",
        examples=[[{"id": "1", "question": "is the fox red ?"}]],
    )


class RowsResponse(BaseModel):
    """What every reply has beside its rows."""

    samples: int = Field(description="posterior draws S; 0: the posterior mean")
    notes: list[str] = Field(description="what is worth knowing about the rows, such as a text that was cut")


class Row(BaseModel):
    """What every row of a reply has."""

    id: str


class ProbabilityRow(Row):
    """The posterior predictive of a question."""

    label: str = Field(description="the most probable class")
    probs: dict[str, float]


class UncertaintyRow(Row):
    """The uncertainty of an answer, in nats: total = aleatoric + epistemic."""

    label: str
    total: float
    aleatoric: float
    epistemic: float


class DrawRow(Row):
    """The probabilities of a question under each draw of the posterior."""

    classes: list[str]
    draws: list[list[float]] = Field(description="S lists of a number a class")


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
    """Reply to a request that is refused."""

    error: str = Field(description="one sentence: what is wrong, and how to mend it")


def probability_row(answer: Answer) -> Json:
    """Return what `/probabilities` says of a question."""
    return {key: answer.said[key] for key in ("id", "label", "probs")}


def uncertainty_row(answer: Answer) -> Json:
    """Return what `/uncertainty` says of a question."""
    return {key: answer.said[key] for key in ("id", "label", "total", "aleatoric", "epistemic")}


def draw_row(answer: Answer) -> Json:
    """Return what `/draws` says of a question."""
    return {"id": answer.said["id"], "classes": list(answer.classes), "draws": answer.draws}


JSON_TYPE = "with Content-Type: application/json"
SHOWN = 60  # characters of what is wrong
MOST_KEYS = 1000
"""Different keys of the rows of a request."""


def is_json(content_type: str) -> bool:
    """Return whether a request says that it is JSON, and nothing beside (`application/problem+json`)."""
    return content_type.partition(";")[0].strip().lower() == "application/json"


def right_form(column: str) -> str:
    """Return what to send where the text of a row is in `column`, as the end of a sentence."""
    return f'send {{"rows": [{{{json.dumps(column)}: "..."}}]}}'


def request_rows(body: bytes, form: str) -> list[Fields]:
    """Return the rows of a request; `form` says what one looks like.

    Written out, and not pydantic's: that looks at all that is wrong, and a request of eight megabytes may
    hold four million mistakes.

    Raises:
        HTTPException: 400 where the body is not JSON, 422 where it is something else than rows.
    """
    asked = _parsed(body, form)
    if asked is None:
        raise HTTPException(422, f"The request is empty (no body, or null): {form} {JSON_TYPE}.")
    if not isinstance(asked, dict):
        raise HTTPException(422, f"The request is {_shown(asked)} and no object: {form}.")
    if "rows" not in asked:
        raise HTTPException(422, f"The request has no 'rows': {form}.")
    for key in asked:
        if key != "rows":
            raise HTTPException(
                422, f"The request has an unknown key {key[:SHOWN]!r}: {form} and nothing else."
            )
    rows = asked["rows"]
    if not isinstance(rows, list) or not rows:
        raise HTTPException(422, f"The rows are {_shown(rows)}: {form}, with at least one row.")
    keys: set[str] = set()
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise HTTPException(422, f"Row {number} is {_shown(row)} and no object: {form}.")
        keys.update(row)
        if len(keys) > MOST_KEYS:
            raise HTTPException(
                422, f"The rows up to row {number} have more than {MOST_KEYS} different keys: {form}."
            )
    return rows


def _parsed(body: bytes, form: str) -> object:
    """Return a body as JSON; None where there is none."""
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
    except ValueError as error:  # of Python's limit on the digits of an integer
        raise HTTPException(400, f"The request holds a number that is too long: {form}.") from error


def _shown(value: object) -> str:
    """Return the beginning of a value as JSON."""
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

"""What is sent to a server and what it sends back, as JSON; what is wrong with a request, in a sentence."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from bara_pyro.serving.engine import Answer
from bara_pyro.types import Json


class Asked(BaseModel):
    """A request: rows with the columns that the run was trained on, or others of a usual name."""

    model_config = ConfigDict(extra="forbid")

    rows: list[dict[str, Any]] = Field(
        min_length=1,
        description="one object a question, as a line of the file of `bara predict`; `id` is optional",
        examples=[[{"id": "1", "question": "is the fox red ?"}]],
    )


class Reply(BaseModel):
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


class Probabilities(Reply):
    """Reply of `/probabilities`."""

    rows: list[ProbabilityRow]


class Uncertainties(Reply):
    """Reply of `/uncertainty`."""

    rows: list[UncertaintyRow]


class Draws(Reply):
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


def right_form(column: str) -> str:
    """Return what to send where the text of a row is in `column`, as the end of a sentence."""
    return f'send {{"rows": [{{{json.dumps(column)}: "..."}}]}}'


def unreadable(cause: BaseException | None, form: str) -> str:
    """Return why a body could not be read, as one sentence with the right form."""
    if isinstance(cause, UnicodeDecodeError):
        return f"The request is not UTF-8 text (byte {cause.start}): {form}, encoded as UTF-8."
    if isinstance(cause, RecursionError):
        return f"The request is nested too deeply: {form}."
    if isinstance(cause, ValueError):  # of Python's limit on the digits of an integer
        return f"The request holds a number that is too long: {form}."
    return f"The request cannot be read: {form}."


def what_is_wrong(errors: Sequence[Any], form: str) -> str:
    """Return the first mistake that was found in a request as one sentence with the right form."""
    first = errors[0]
    where = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return f"The request is not JSON ({first['ctx']['error']} at character {where[0]}): {form}."
    if not where and first["input"] is None:
        return f"The request is empty (no body, or null): {form} {JSON_TYPE}."
    if not where and isinstance(first["input"], bytes):
        return f"The request does not say that it is JSON: {form} {JSON_TYPE}."
    if not where:
        return f"The request is {_shown(first['input'])} and no object: {form}."
    if first["type"] == "extra_forbidden":
        return f"The request has an unknown key {where[0]!r}: {form} and nothing else."
    if first["type"] == "missing":
        return f"The request has no {where[0]!r}: {form}."
    if len(where) > 1:
        number = int(where[1]) + 1
        return f"Row {number} is {_shown(first['input'])} and no object: {form}."
    return f"The rows are {_shown(first['input'])}: {form}, with at least one row."


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Replies that have been scored, prompt by prompt: what best of n needs."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bara_pyro.data.messages import PROMPTS, asked_in, said_by_user
from bara_pyro.data.reading import parse_lines
from bara_pyro.data.rows import column_in, own_id
from bara_pyro.errors import DataError
from bara_pyro.extras.replies.generation.spread import token_entropy
from bara_pyro.extras.replies.reward.files import REPLIES
from bara_pyro.types import Fields, Json

ByNumber = dict[int, tuple[Json, str]]
"""The rows of a prompt by the number of their reply, and where each stands."""


@dataclass(frozen=True)
class Scored:
    """Scored replies, the same number for every prompt.

    Attributes:
        ids: identifiers of the prompts.
        scores: `prompts x replies`.
        replies: the texts, in the same order.
        asked: the last user message of each prompt, if the rows contain it.
        judge: what the scores' judge is called, with its accuracy on held-out pairs where that is known (see
            `bara_pyro.extras.replies.reward.agreement.brief`); None where the file does not say.
        entropy: of a token, see `bara_pyro.extras.replies.generation.spread.token_entropy`.
    """

    ids: tuple[str, ...]
    scores: NDArray[np.float64]
    replies: tuple[tuple[str, ...], ...]
    asked: tuple[str | None, ...]
    judge: Json | None
    entropy: Json


def read_scored(path: str | Path) -> Scored:
    """Read the replies of a file of `bara reward score`: rows with `id`, `number`, `score` and a reply.

    The reply is in `reply`, `completion` or `output`, as for `bara reward score` (`reward.files.REPLIES`).

    Raises:
        DataError: a row has no score or no text as its reply, a prompt has another number of replies than the
            first, or rows were scored by different judges.
    """
    found, judge = _read(path)
    rows = [list(own.values()) for own in found.values()]
    return Scored(
        tuple(found),
        _scores(found),
        tuple(tuple(_reply(row, where) for row, where in own) for own in rows),
        tuple(_asked(own) for own in found.values()),
        judge,
        token_entropy(row for own in rows for row, _ in own),
    )


def _read(path: str | Path) -> tuple[dict[str, ByNumber], Json | None]:
    """Return the scored rows of each prompt in the order of their numbers, as many of each, and the judge."""
    found: dict[str, ByNumber] = {}
    judge: Json | None = None
    for place, row in enumerate(parse_lines(Path(path)), start=1):
        score, number = row.get("score"), row.get("number", 0)
        if score is None:
            raise DataError(
                f"{path}, row {place} has no score: score the replies first with `bara reward score JUDGE "
                f"--input {path} --output scores.jsonl`, and give that file."
            )
        if not _number(score) or not math.isfinite(score):
            raise DataError(
                f"{path}, row {place} has {score!r} as its score: give a file of `bara reward score`."
            )
        _check_numbers(row, f"{path}, row {place}")
        if place > 1 and row.get("judge") != judge:
            raise DataError(
                f"{path}, row {place} was scored by another judge than the first: score all by one."
            )
        judge = row.get("judge")
        own = found.setdefault(own_id(row) or f"row-{place}", {})
        if number in own:
            raise DataError(f"{path}, row {place} is reply {number} of its prompt again: leave one out.")
        own[number] = row, f"{path}, row {place}"
    count = len(next(iter(found.values())))
    for name, own in found.items():
        if len(own) != count:
            raise DataError(
                f"{path} has {len(own)} replies to {name!r} and {count} to the first prompt: score as "
                "many of each."
            )
    return {name: {number: own[number] for number in sorted(own)} for name, own in found.items()}, judge


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_numbers(row: Fields, where: str) -> None:
    """Refuse a row whose numbers, of `bara generate`, are none."""
    for name in ("number", "log_prob", "tokens", "total", "epistemic"):
        value = row.get(name)
        if name in ("total", "epistemic"):  # one a token
            fine = isinstance(value, list) and all(one is None or _number(one) for one in value)
        else:
            fine = _number(value) and (name != "number" or isinstance(value, int))
        if name in row and not fine and not (value is None and name != "number"):
            raise DataError(f"{where} has {str(value)[:60]!r} as its {name!r}: leave that out, or mend it.")


def _scores(found: dict[str, ByNumber]) -> NDArray[np.float64]:
    """Return the scores, `prompts x replies`."""
    return np.array([[float(row["score"]) for row, _ in own.values()] for own in found.values()])


def _reply(row: Fields, where: str) -> str:
    """Return the text of a reply, from the column that `bara reward score` takes it from."""
    column = column_in(row, REPLIES)
    if column is None:
        raise DataError(f"{where} has no reply: give a text in 'reply', 'completion' or 'output'.")
    reply = row[column]
    if not isinstance(reply, str):
        raise DataError(f"{where} has {str(reply)[:60]!r} as its {column!r}: give a text.")
    return reply


def _asked(own: ByNumber) -> str | None:
    """Return the last user message of a prompt, stripped of white space, or None if it is missing."""
    row, where = next(iter(own.values()))
    column = column_in(row, PROMPTS)
    return None if column is None else said_by_user(asked_in(row, column, where))[-1]["content"].strip()


def references_of(path: Path, scored: Scored) -> NDArray[np.float64]:
    """Return the score of one reference reply a prompt, `prompts`; rows go by their `id`, or their place.

    The texts of the references are not looked at; those of the prompts are, where both files have them.

    Raises:
        DataError: a prompt has no reference, or several, or one that replies to another prompt, or another
            judge scored them.
    """
    found, judge = _read(path)
    if judge != scored.judge:
        raise DataError(f"{path} was not scored by the judge of the replies: score both by one.")
    scores = dict(zip(found, _scores(found), strict=True))
    for name, asked in zip(scored.ids, scored.asked, strict=True):
        if name not in scores or len(scores[name]) != 1:
            several = f"{len(scores[name])} references a prompt" if name in scores else f"none of {name!r}"
            raise DataError(f"{path} has {several}: give one reference to every prompt.")
        other = _asked(found[name])
        # A chat template may stand around one of the two.
        if asked and other and asked not in other and other not in asked:
            raise DataError(
                f"The reference {name!r} of {path} replies to {other[:60]!r} and the replies to "
                f"{asked[:60]!r}: give the prompts of both files the same ids, in a column 'id'."
            )
    return np.array([scores[name][0] for name in scored.ids])

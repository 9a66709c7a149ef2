"""Read scored replies by prompt, for best-of-n."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bara_pyro.data.conversations import PROMPTS, asked_in, said_by_user
from bara_pyro.data.reading import objects_in
from bara_pyro.data.rows import column_in, own_id
from bara_pyro.data.tables import DataTable
from bara_pyro.errors import DataError
from bara_pyro.extras.replies.generation.spread import token_entropy
from bara_pyro.extras.replies.reward.files import REPLIES
from bara_pyro.types import Fields, Json

ByNumber = dict[int, tuple[Json, str]]
"""Number of a reply -> its row, and the row's place in the file."""


@dataclass(frozen=True)
class Scored:
    """Scored replies, the same number for every prompt.

    Attributes:
        ids: identifiers of the prompts.
        scores: scores of the replies, `prompts x replies`.
        replies: their texts, in the same order.
        asked: the last user message of each prompt, if the rows contain it.
        judge: `name` of the judge, and a hash of its `weights` if known; None if the file does not name it.
        entropy: entropy per token; see `bara_pyro.extras.replies.generation.spread.token_entropy`.
    """

    ids: tuple[str, ...]
    scores: NDArray[np.float64]
    replies: tuple[tuple[str, ...], ...]
    asked: tuple[str | None, ...]
    judge: Json | None
    entropy: Json


def read_scored(path: str | Path) -> Scored:
    """Read a file that `bara reward score` wrote: rows with `id`, `number`, `score` and a reply.

    The reply is in `reply`, `completion` or `output`, as for `bara reward score` (`reward.files.REPLIES`).

    Raises:
        DataError: a row has no score or no text as its reply, prompts have different numbers of replies, or
            rows were scored by different judges.
    """
    by_prompt, judge = _read(path)
    rows = [list(of_prompt.values()) for of_prompt in by_prompt.values()]
    return Scored(
        tuple(by_prompt),
        _scores(by_prompt),
        tuple(tuple(_reply(row, where) for row, where in of_prompt) for of_prompt in rows),
        tuple(_asked(of_prompt) for of_prompt in by_prompt.values()),
        judge,
        token_entropy(row for of_prompt in rows for row, _ in of_prompt),
    )


def _read(path: str | Path) -> tuple[dict[str, ByNumber], Json | None]:
    """Return the scored rows of each prompt ordered by number, and the judge; errors as `read_scored`."""
    by_prompt: dict[str, ByNumber] = {}
    judge: Json | None = None
    table = DataTable(str(path), list(objects_in(Path(path))))
    for place, row in enumerate(table.rows, start=1):
        score, number = row.get("score"), row.get("number", 0)
        if score is None:
            raise DataError(
                f"{path}, row {place} has no score: run `bara reward score JUDGE --input {path} "
                "--output scores.jsonl`, and give scores.jsonl."
            )
        if not _number(score) or not math.isfinite(score):
            raise DataError(
                f"{path}, row {place} has {score!r} as its score: give a file that `bara reward score` wrote."
            )
        _check_numbers(row, f"{path}, row {place}")
        of_row = _judge(row)
        if place > 1 and of_row != judge:
            raise DataError(
                f"{path}, row {place} was scored by another judge than row 1: score all rows with one judge."
            )
        judge = of_row
        of_prompt = by_prompt.setdefault(own_id(row) or f"row-{place}", {})
        if number in of_prompt:
            raise DataError(
                f"{path}, row {place} repeats reply {number} to its prompt: remove one of the two."
            )
        of_prompt[number] = row, f"{path}, row {place}"
    count = len(next(iter(by_prompt.values())))
    for name, of_prompt in by_prompt.items():
        if len(of_prompt) != count:
            raise DataError(
                f"{path} has {len(of_prompt)} replies to {name!r} and {count} to the first prompt: score the "
                "same number for every prompt."
            )
    return {name: dict(sorted(of_prompt.items())) for name, of_prompt in by_prompt.items()}, judge


def _judge(row: Fields) -> Json | None:
    """Return the fields that identify a row's judge; earlier versions also stored its accuracy."""
    judge = row.get("judge")
    if isinstance(judge, dict) and "name" in judge:
        return {name: judge[name] for name in ("name", "weights") if name in judge}
    return None if judge is None else {"name": str(judge)}


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_numbers(row: Fields, where: str) -> None:
    """Refuse a row in which a field of `bara generate` is not a number."""
    for name in ("number", "log_prob", "tokens", "total", "epistemic"):
        value = row.get(name)
        if name in ("total", "epistemic"):  # one per token
            fine = isinstance(value, list) and all(one is None or _number(one) for one in value)
        else:
            fine = _number(value) and (name != "number" or isinstance(value, int))
        if name in row and not fine and not (value is None and name != "number"):
            raise DataError(f"{where} has {str(value)[:60]!r} as its {name!r}: correct it, or leave it out.")


def _scores(by_prompt: dict[str, ByNumber]) -> NDArray[np.float64]:
    """Return the scores, `prompts x replies`."""
    return np.array(
        [[float(row["score"]) for row, _ in of_prompt.values()] for of_prompt in by_prompt.values()]
    )


def _reply(row: Fields, where: str) -> str:
    """Return the text of a reply, from the column that `bara reward score` reads."""
    column = column_in(row, REPLIES)
    if column is None:
        raise DataError(f"{where} has no reply: give a text in 'reply', 'completion' or 'output'.")
    reply = row[column]
    if not isinstance(reply, str):
        raise DataError(f"{where} has {str(reply)[:60]!r} as its {column!r}: give a text.")
    return reply


def _asked(of_prompt: ByNumber) -> str | None:
    """Return the last user message of a prompt, stripped of white space, or None if it is missing."""
    row, where = next(iter(of_prompt.values()))
    column = column_in(row, PROMPTS)
    return None if column is None else said_by_user(asked_in(row, column, where))[-1]["content"].strip()


def references_of(path: Path, scored: Scored) -> NDArray[np.float64]:
    """Return the score of one reference reply per prompt, `prompts`.

    Rows are matched by their `id`, or by their position if they have none. Prompts are compared if both files
    contain them; the texts of the references are ignored.

    Raises:
        DataError: a prompt has no reference or several, a reference replies to another prompt, or another
            judge scored them.
    """
    by_prompt, judge = _read(path)
    if judge != scored.judge:
        raise DataError(f"{path} was scored by another judge than the replies: score both with one judge.")
    scores = dict(zip(by_prompt, _scores(by_prompt), strict=True))
    for name, asked in zip(scored.ids, scored.asked, strict=True):
        if name not in scores or len(scores[name]) != 1:
            count = len(scores[name]) if name in scores else "no"
            raise DataError(
                f"{path} has {count} references for the prompt {name!r}: give one reference per prompt."
            )
        other = _asked(by_prompt[name])
        # One of the two may be inside a chat template.
        if asked and other and asked not in other and other not in asked:
            raise DataError(
                f"The reference {name!r} of {path} replies to {other[:60]!r}, but the replies to "
                f"{asked[:60]!r}: give the prompts of both files the same ids in a column 'id'."
            )
    return np.array([scores[name][0] for name in scored.ids])

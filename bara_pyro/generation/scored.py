"""Replies that have been scored, prompt by prompt: what best of n needs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bara_pyro.data.reading import parse_lines
from bara_pyro.data.rows import own_id
from bara_pyro.errors import DataError
from bara_pyro.generation.spread import token_entropy
from bara_pyro.types import Json


@dataclass(frozen=True)
class Scored:
    """Scored replies, as many of every prompt.

    Attributes:
        ids: of the prompts.
        scores: `prompts x replies`.
        replies: the texts, in the same order.
        judge: what the scores' judge is called, with its accuracy on held-out pairs where that is known (see
            `bara_pyro.reward.agreement.brief`); None where the file does not say.
        entropy: of a token, see `bara_pyro.generation.spread.token_entropy`.
    """

    ids: tuple[str, ...]
    scores: NDArray[np.float64]
    replies: tuple[tuple[str, ...], ...]
    judge: Json | None
    entropy: Json


def read_scored(path: str | Path) -> Scored:
    """Read the replies of a file of `bara reward score`: rows with `id`, `number`, `reply` and `score`.

    Raises:
        DataError: a row lacks one of these, a prompt has another number of replies than the first, or rows
            were scored by different judges.
    """
    found: dict[str, dict[int, Json]] = {}
    judge: Json | None = None
    for place, row in enumerate(parse_lines(Path(path)), start=1):
        score, number = row.get("score"), row.get("number", 0)
        if score is None:
            raise DataError(
                f"{path}, row {place} has no score: score the replies first with `bara reward score JUDGE "
                f"--input {path} --output scores.jsonl`, and give that file."
            )
        if not isinstance(score, int | float) or isinstance(score, bool):
            raise DataError(
                f"{path}, row {place} has {score!r} as its score: give a file of `bara reward score`."
            )
        if place > 1 and row.get("judge") != judge:
            raise DataError(
                f"{path}, row {place} was scored by another judge than the first: score all by one."
            )
        judge = row.get("judge")
        own = found.setdefault(own_id(row) or f"row-{place}", {})
        if number in own:
            raise DataError(f"{path}, row {place} is reply {number} of its prompt again: leave one out.")
        own[number] = row
    count = len(next(iter(found.values())))
    for name, own in found.items():
        if len(own) != count:
            raise DataError(
                f"{path} has {len(own)} replies to {name!r} and {count} to the first prompt: score as "
                "many of each."
            )
    rows = [[own[number] for number in sorted(own)] for own in found.values()]
    return Scored(
        tuple(found),
        np.array([[float(row["score"]) for row in own] for own in rows]),
        tuple(tuple(str(row.get("reply", row.get("completion", ""))) for row in own) for own in rows),
        judge,
        token_entropy(row for own in rows for row in own),
    )


def references_of(path: Path, scored: Scored) -> NDArray[np.float64]:
    """Return the score of one reference reply a prompt, `prompts`; rows go by their `id`, or their place.

    Raises:
        DataError: a prompt has no reference, or several, or another judge scored them.
    """
    found = read_scored(path)
    if found.judge != scored.judge:
        raise DataError(f"{path} was not scored by the judge of the replies: score both by one.")
    places = {name: place for place, name in enumerate(found.ids)}
    for name in scored.ids:
        if name not in places or found.scores.shape[1] != 1:
            several = (
                f"{found.scores.shape[1]} references a prompt" if name in places else f"none of {name!r}"
            )
            raise DataError(f"{path} has {several}: give one reference to every prompt.")
    return found.scores[[places[name] for name in scored.ids], 0]

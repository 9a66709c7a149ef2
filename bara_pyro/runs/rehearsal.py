"""A temperature without validation rows: of a rehearsal on half of the rows, by what it says of the others.

Cross-validation with one fold of a half. The rehearsal is a training like any other, with as many passes over
its rows as the run makes over all of them; what is kept of it are its predictions. The run itself is trained
on all rows as if there had been none.
"""

import math
from pathlib import Path

import torch
from torch import Tensor

from bara_pyro.data import EncodedSplit
from bara_pyro.data.clusters import places_by_group, together
from bara_pyro.errors import DataError
from bara_pyro.metrics import nll, posterior_predictive
from bara_pyro.posthoc.corrections import require_temperature
from bara_pyro.posthoc.temperature import best_common_log_temperature, too_unsure
from bara_pyro.runs.atomic import write_json
from bara_pyro.runs.by_rows import ASKED_ROWS, REHEARSED_ROWS, calibrated
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.halves import rehearsed_halves
from bara_pyro.runs.manifest import REHEARSED
from bara_pyro.runs.system import System, assemble
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_json
from bara_pyro.untrusted.schemas import RehearsedFile

DRAWS, SPREAD = 10, 0.5  # draws a prediction; the standard deviation of ln T before a row is seen


def rehearsal_steps(steps: int, learnt: int, rows: int) -> int:
    """Return how long a rehearsal is that learns so many rows of a run's: each as often as the run does."""
    return math.ceil(steps * learnt / rows)


def halves_of(system: System) -> tuple[list[int], list[int]]:
    """Return the places of the training rows that a system's rehearsal learns, and of those it is asked."""
    return rehearsed_halves(system.task, system.split("train"), system.config.seed)


def check_rehearsal(system: System) -> None:
    """Refuse, before anything is trained, rows that are too few, or too few that a rehearsal could be asked.

    Raises:
        DataError: they are.
    """
    rows = system.model.num_data
    if rows < REHEARSED_ROWS:
        raise DataError(
            f"{rows} training rows are too few for calibrated=True (adapter.calibrated), which fits a "
            f"temperature to half of them: give at least {REHEARSED_ROWS}, or leave it out."
        )
    if (asked := len(halves_of(system)[1])) < ASKED_ROWS:
        raise DataError(
            f"calibrated=True (adapter.calibrated) needs {ASKED_ROWS} rows to fit a temperature to, and of "
            f"{rows} training rows it could ask {asked}, as the others belong together: leave it out."
        )


def rehearsal_of(system: System, steps: int) -> tuple[System, EncodedSplit]:
    """Return a program like a system's for a run of so many steps, with half of its rows, and the other half.

    It has as many passes over its rows as the run over all.
    """
    split, c = system.split("train"), system.config
    learnt, asked = halves_of(system)
    own = rehearsal_steps(steps, len(learnt), len(split))
    train = c.train.model_copy(update={"steps": own, "may_double": None})
    config = calibrated(c, False).model_copy(update={"train": train})
    half = assemble(config, system.backbone, system.task, len(learnt))
    half._encoded.update(system._encoded)
    half._encoded["train"] = split.take(learnt)
    return half, split.take(asked)


def rehearsed_steps(system: System, out: Path) -> int:
    """Return the steps of the run that the rehearsal in a folder is one for; 0 without one of these rows."""
    if not (out / REHEARSED).exists():
        return 0
    split, stored = system.split("train"), read_json(out / REHEARSED, RehearsedFile)
    _, asked = halves_of(system)
    same = [row["id"] for row in stored["rows"]] == [split.ids[row] for row in asked]
    return stored.get("steps", system.config.train.total_steps) if same else 0


def steps_wanted(system: System, out: Path) -> int:
    """Return how many steps a run has by what its folder holds: as configured, or twice as many, once.

    A program that is not sure enough of itself about rows that it has not learnt has learnt too little yet:
    what was measured of that stands in docs/calibrated.md. Its best temperature is below 1 then, by more than
    chance would have it of a calibrated one (`too_unsure`).
    """
    c = system.config.train
    if not system.config.adapter.calibrated:
        return c.total_steps
    rehearsed = rehearsed_steps(system, out)
    if rehearsed != c.total_steps or not c.may_double:
        return rehearsed or c.total_steps
    stored = read_json(out / REHEARSED, RehearsedFile)
    return 2 * rehearsed if too_unsure(*_answers(stored), _groups(system, stored)) else rehearsed


def _groups(system: System, stored: Json) -> list[list[int]]:
    """Return which of the rows of a rehearsal belong together, as places among them."""
    known = {row.id: row for row in system.task.train}
    return places_by_group(together([known[row["id"]] for row in stored["rows"]], passages=True))


def _answers(stored: Json) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of a rehearsal, `S x n x C`, and the labels."""
    # JSON has no infinity: what a row does not offer stands there as null.
    known = [
        [[-math.inf if value is None else value for value in draw] for draw in row["log_probs"]]
        for row in stored["rows"]
    ]
    draws = torch.tensor(known, dtype=torch.float64).transpose(0, 1)
    return draws, torch.tensor([row["label"] for row in stored["rows"]])


def write_rehearsed(half: System, asked: EncodedSplit, out: Path, steps: int, seconds: float) -> None:
    """Write what a rehearsal for so many steps says of the rows that it has not learnt."""
    drawn = draw(half, asked, DRAWS)
    rows: list[Json] = [
        {"id": asked.ids[i], "label": asked.labels[i], "log_probs": drawn[:, i].tolist()}
        for i in range(len(asked))
    ]
    write_json(out / REHEARSED, {"steps": steps, "seconds": seconds, "rows": rows})


def fit_rehearsed(system: System, out: Path) -> dict[str, float]:
    """Set the temperature to the most probable one after what a rehearsal said, `N(0, SPREAD^2)` before.

    It is never below 1: where rows asked resemble rows learnt (one text twice, one template), a rehearsal
    is right too often, and the run would be made surer of rows that resemble none.

    Returns:
        `temperature`, `nll_1` and `nll_temperature` (nats, of these predictions), `rows`, `steps` of the run,
        and `seconds` that rehearsals took.
    """
    stored = read_json(out / REHEARSED, RehearsedFile)
    draws, labels = _answers(stored)
    found = max(0.0, best_common_log_temperature(draws, labels, spread=SPREAD))
    require_temperature(system.corrections).set(found)
    after = (draws / math.exp(found)).log_softmax(-1)
    return {
        "temperature": math.exp(found),
        "nll_1": nll(posterior_predictive(draws), labels),
        "nll_temperature": nll(posterior_predictive(after), labels),
        "rows": float(len(labels)),
        "steps": float(steps_wanted(system, out)),
        "seconds": stored["seconds"],
    }

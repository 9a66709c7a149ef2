"""Split-half calibration: a temperature without validation rows.

A second fit is trained on half of the training rows, with as many passes over them as the run makes over all
rows. Its predictions of the other half set the temperature. The run itself is then trained on all rows.
"""

import math
from pathlib import Path

import torch
from torch import Tensor

from bara_pyro.atomic import write_json
from bara_pyro.data import EncodedSplit
from bara_pyro.data.clusters import places_by_group, rehearsed_halves, together
from bara_pyro.errors import DataError
from bara_pyro.metrics import nll, posterior_predictive
from bara_pyro.posthoc.corrections import require_temperature
from bara_pyro.posthoc.temperature import best_common_log_temperature, too_unsure
from bara_pyro.runs.by_rows import ASKED_ROWS, REHEARSED_ROWS, calibrated
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.manifest import REHEARSED
from bara_pyro.runs.system import System, assemble
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_json
from bara_pyro.untrusted.schemas import RehearsedFile

DRAWS, SPREAD = 10, 0.5  # draws per prediction; prior standard deviation of ln T


def rehearsal_steps(steps: int, learnt: int, rows: int) -> int:
    """Return the steps of the second fit, so that it sees each of its rows as often as the run does."""
    return math.ceil(steps * learnt / rows)


def halves_of(system: System) -> tuple[list[int], list[int]]:
    """Return the indices of the training rows that the second fit learns, and of those it is scored on."""
    return rehearsed_halves(system.task, system.split("train"), system.config.seed)


def check_rehearsal(system: System) -> None:
    """Refuse too few rows for split-half calibration, before anything is trained.

    Raises:
        DataError: there are too few training rows, or too few of them can be held out.
    """
    rows = system.model.num_data
    if rows < REHEARSED_ROWS:
        raise DataError(
            f"{rows} training rows are too few for split-half calibration (adapter.calibrated): give at "
            f"least {REHEARSED_ROWS}, or leave calibrated=True out."
        )
    if (held_out := len(halves_of(system)[1])) < ASKED_ROWS:
        raise DataError(
            f"Split-half calibration (adapter.calibrated) can hold out only {held_out} of {rows} training "
            f"rows, as the others belong together; it needs {ASKED_ROWS}: leave calibrated=True out."
        )


def rehearsal_of(system: System, steps: int) -> tuple[System, EncodedSplit]:
    """Return an untrained system for half of the rows, and the other half.

    Args:
        system: the run's own system.
        steps: steps of the run; the second fit has as many passes over its rows as the run over all.
    """
    split, c = system.split("train"), system.config
    learnt, held_out = halves_of(system)
    steps_of_half = rehearsal_steps(steps, len(learnt), len(split))
    train = c.train.model_copy(update={"steps": steps_of_half, "may_double": None})
    config = calibrated(c, False).model_copy(update={"train": train})
    half = assemble(config, system.backbone, system.task, len(learnt), system.model.rank_pattern)
    if c.adapter.start is not None:
        half.model.load_state_dict(system.model.state_dict())
    half._encoded.update(system._encoded)
    half._encoded["train"] = split.take(learnt)
    return half, split.take(held_out)


def rehearsed_steps(system: System, out: Path) -> int:
    """Return the run's steps that a stored calibration was made for; 0 if there is none for these rows."""
    if not (out / REHEARSED).exists():
        return 0
    split, stored = system.split("train"), read_json(out / REHEARSED, RehearsedFile)
    _, held_out = halves_of(system)
    same = [row["id"] for row in stored["rows"]] == [split.ids[row] for row in held_out]
    return stored.get("steps", system.config.train.total_steps) if same else 0


def steps_wanted(system: System, out: Path) -> int:
    """Return the run's number of steps: as configured, or doubled once if it would be underconfident.

    A model that is underconfident on held-out rows was trained for too few steps: its best temperature is
    significantly below 1 (`too_unsure`). docs/calibrated.md has the measurements.
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
    """Return the groups of the held-out rows, as lists of their indices."""
    known = {row.id: row for row in system.task.train}
    return places_by_group(together([known[row["id"]] for row in stored["rows"]], passages=True))


def _answers(stored: Json) -> tuple[Tensor, Tensor]:
    """Return the stored log-probabilities, `S x n x C`, and the labels, `n`."""
    # JSON has no infinity: the log-probability of an option that a row does not offer is stored as null.
    known = [
        [[-math.inf if value is None else value for value in draw] for draw in row["log_probs"]]
        for row in stored["rows"]
    ]
    draws = torch.tensor(known, dtype=torch.float64).transpose(0, 1)
    return draws, torch.tensor([row["label"] for row in stored["rows"]])


def write_rehearsed(half: System, held_out: EncodedSplit, out: Path, steps: int, seconds: float) -> None:
    """Write the second fit's predictions of the held-out half, and the run's `steps` they are for."""
    drawn = draw(half, held_out, DRAWS)
    rows: list[Json] = [
        {"id": held_out.ids[i], "label": held_out.labels[i], "log_probs": drawn[:, i].tolist()}
        for i in range(len(held_out))
    ]
    write_json(out / REHEARSED, {"steps": steps, "seconds": seconds, "rows": rows})


def fit_rehearsed(system: System, out: Path) -> dict[str, float]:
    """Set the temperature T to its most probable value on the held-out half; prior of ln T: N(0, SPREAD^2).

    It is never below 1: if the two halves resemble each other (duplicates, one template), the second fit is
    right too often, and T < 1 would make the run overconfident on new rows.

    Returns:
        `temperature`, `nll_1` and `nll_temperature` (NLL in nats of the held-out half at T = 1 and at the
        temperature), `rows`, `steps` of the run, and `seconds` that calibration took.
    """
    stored = read_json(out / REHEARSED, RehearsedFile)
    draws, labels = _answers(stored)
    log_temperature = max(0.0, best_common_log_temperature(draws, labels, spread=SPREAD))
    require_temperature(system.corrections).set(log_temperature)
    after = (draws / math.exp(log_temperature)).log_softmax(-1)
    return {
        "temperature": math.exp(log_temperature),
        "nll_1": nll(posterior_predictive(draws), labels),
        "nll_temperature": nll(posterior_predictive(after), labels),
        "rows": float(len(labels)),
        "steps": float(steps_wanted(system, out)),
        "seconds": stored["seconds"],
    }

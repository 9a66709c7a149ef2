"""Split-half calibration: a temperature without validation rows.

A fit is trained on half of the training rows, with as many passes over them as the run makes over all rows,
and predicts the other half. If there are few rows, another one predicts the first with the halves turned
around. These predictions set the temperature. The run itself is then trained on all rows. If it fits its own
rows better than the fit, it is surer, and its temperature higher.

With `train.find_lr` the first half is fitted at two of `RATES`, the middle one and the higher one. The higher
is taken, unless the middle one predicts the other half significantly better. With many rows a quarter of the
steps at the middle rate comes in between. If it is significantly better, it is taken (`train.may_shorten`),
and the search ends; if it is better at all, the second rate is the lower one. If the run turns out to be
unstable, it is trained once more at the next lower rate.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bara_pyro.atomic import write_json
from bara_pyro.data import EncodedSplit
from bara_pyro.data.clusters import places_by_group, split_halves, together
from bara_pyro.errors import DataError
from bara_pyro.metrics import nll, posterior_predictive
from bara_pyro.metrics.scores import nll_per_example
from bara_pyro.posthoc.corrections import Corrections, require_temperature
from bara_pyro.posthoc.temperature import (
    best_temperature,
    nll_at,
    predictive_at,
    significantly_lower,
    too_unsure,
)
from bara_pyro.runs.config import ASKED_ROWS, SPLIT_HALF_ROWS, turned
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.manifest import CHECKPOINT, SPLIT_HALF_FILE
from bara_pyro.runs.steps import last_nll, train_seconds
from bara_pyro.runs.system import System, assemble
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_json
from bara_pyro.untrusted.schemas import SplitHalfFile

DRAWS = 10  # per prediction
SHORTER = 4  # a fourth of the steps is tried as well
LEARNT_ROWS = 300  # most rows on which `learnt_nll` predicts
# By how much ln T rises for each nat by which the run's `learnt_nll` is lower than that of the fit, and the
# most by which it changes; docs/calibrated.md has the measurements.
SURER, MOST_SURER = 1.5, math.log(2)
RATES = (3.0, 1.0, 0.3)  # rates of `find_lr`, as multiples of lr; docs/calibrated.md says why
MIDDLE = 1  # the one that is tried first


class HalfFit(NamedTuple):
    """A fit of split-half calibration.

    Attributes:
        steps: steps of the run; the fit has as many passes over its rows as the run over all.
        rate: with `find_lr`, the index in `RATES` of the run's learning rate that the fit tries.
        turned: 1 if it learns the rows that the others are scored on, and is scored on theirs; else 0.
    """

    steps: int
    rate: int = MIDDLE
    turned: int = 0


def shortened(steps: int) -> int:
    """Return the steps of a run that is a quarter as long."""
    return math.ceil(steps / SHORTER)


def split_half_steps(steps: int, learnt: int, rows: int) -> int:
    """Return the steps of a fit to half of the rows, so that it sees each as often as the run does."""
    return math.ceil(steps * learnt / rows)


def halves_of(system: System, turned: int = 0) -> tuple[list[int], list[int]]:
    """Return the indices of the training rows that a fit learns, and of those it is scored on."""
    learnt, held_out = split_halves(system.task, system.split("train"), system.config.seed)
    return (held_out, learnt) if turned else (learnt, held_out)


def turns(system: System) -> bool:
    """Return whether the halves are turned around."""
    learnt, held_out = map(len, halves_of(system))
    return turned(learnt + held_out, held_out)


def check_split_half(system: System) -> None:
    """Raise a `DataError` before training if there are too few rows to calibrate, or to be held out."""
    rows = system.model.num_data
    if rows < SPLIT_HALF_ROWS:
        raise DataError(
            f"{rows} training rows are too few for split-half calibration (adapter.calibrated, "
            f"train.find_lr): give at least {SPLIT_HALF_ROWS}, or leave it out."
        )
    if (held_out := len(halves_of(system)[1])) < ASKED_ROWS:
        raise DataError(
            f"Split-half calibration (adapter.calibrated, train.find_lr) can hold out only {held_out} of "
            f"{rows} training rows, as the others belong together; it needs {ASKED_ROWS}: leave it out."
        )


def split_half_system(system: System, fit: HalfFit) -> tuple[System, EncodedSplit]:
    """Return an untrained system for the rows that a fit learns, and the rows that it is scored on."""
    split, c = system.split("train"), system.config
    learnt, held_out = halves_of(system, fit.turned)
    own = {"steps": split_half_steps(fit.steps, len(learnt), len(split)), "lr": rate_of(system, fit.rate)}
    config = c.updated("adapter", calibrated=False).updated(
        "train", **own, may_double=None, may_shorten=None, find_lr=False
    )
    half = assemble(config, system.backbone, system.task, len(learnt), system.model.rank_pattern)
    if c.adapter.start is not None:
        half.model.load_state_dict(system.model.state_dict())
    half._encoded.update(system._encoded)
    half._encoded["train"] = split.take(learnt)
    return half, split.take(held_out)


def _stored(system: System, out: Path) -> Json:
    """Return a run's stored calibration; empty if there is none for these rows, or its search was another."""
    if not (out / SPLIT_HALF_FILE).exists():
        return {}
    split, stored = system.split("train"), read_json(out / SPLIT_HALF_FILE, SplitHalfFile)
    held_out = halves_of(system)[1]
    same = [row["id"] for row in stored["rows"]] == [split.ids[row] for row in held_out]
    for tried in stored.get("tried", [])[:1]:
        same &= math.isclose(tried["lr"], rate_of(system, MIDDLE))
    return stored if same else {}


def calibrated_steps(system: System, out: Path) -> int:
    """Return the run's steps that a stored calibration was made for; 0 if there is none for these rows."""
    return int(_stored(system, out).get("steps", 0))


def steps_wanted(system: System, out: Path) -> int:
    """Return the run's number of steps: as configured, doubled once, or a quarter.

    A model that is underconfident on held-out rows was trained for too few steps: its best temperature is
    significantly below 1 (`too_unsure`). A shorter fit is taken by the rule of `find_lr`. docs/calibrated.md
    has the measurements.
    """
    c = system.config.train
    if not system.config.adapter.calibrated:
        return c.total_steps
    stored = _stored(system, out)
    steps = int(stored.get("steps", 0)) or c.total_steps
    doubles = bool(stored) and c.may_double and steps == c.total_steps
    if doubles and too_unsure(*answers_of(stored["rows"]), _groups(system, stored)):
        return 2 * steps
    return steps


def rates_tried(system: System, out: Path) -> list[float]:
    """Return the learning rates that a stored calibration of this run has tried, from the highest down."""
    return sorted({tried["lr"] for tried in _stored(system, out).get("tried", [])}, reverse=True)


def rate_of(system: System, rate: int) -> float:
    """Return the learning rate with an index in `RATES`; without `find_lr` the configured one."""
    c = system.config.train
    return c.peak_lr * RATES[rate] if c.find_lr else c.peak_lr


def best_rate(system: System, out: Path) -> int:
    """Return the index in `RATES` of the rate that a stored calibration took last; `MIDDLE` without one."""
    taken = [tried["lr"] for tried in _stored(system, out).get("tried", []) if tried["taken"]][-1:]
    same = [rate for lr in taken for rate in range(len(RATES)) if math.isclose(lr, rate_of(system, rate))]
    return same[0] if same else MIDDLE


def run_rate(system: System, out: Path) -> int:
    """Return the index in `RATES` of the run's own rate: the one taken, or the next if it was unstable."""
    return best_rate(system, out) + bool(_stored(system, out).get("lowered"))


def own_nlls(out: Path) -> tuple[float, float] | None:
    """Return a calibrated run's NLL (nats a row) on its own rows at the end of training, and its limit.

    A run above the limit was unstable: the optimiser has left a good fit. The limit is the middle between
    the NLL of a fit to half of the rows on its own rows and the one with which the fits predicted the others.
    The result is None without a log or a calibration.
    """
    own = last_nll(out)
    if own is None or not (out / SPLIT_HALF_FILE).exists():
        return None
    stored = read_json(out / SPLIT_HALF_FILE, SplitHalfFile)
    predicted, of_half = _predicted_nll(stored)[1], stored.get("own_nll")
    return own, predicted if of_half is None else (min(of_half, predicted) + predicted) / 2


def is_unstable(out: Path) -> bool:
    """Whether a trained run fits its own rows worse than stable training would; see `own_nlls`."""
    found = own_nlls(out)
    return found is not None and found[0] > found[1]


def lower_rate(system: System, out: Path, *, diverged: bool) -> bool:
    """Lower a run's rate once if its training was unstable or has diverged; return whether it was lowered."""
    rate = run_rate(system, out)
    if rate > best_rate(system, out) or rate + 1 == len(RATES) or not (diverged or is_unstable(out)):
        return False
    (out / CHECKPOINT).unlink(missing_ok=True)  # before: killed here, the run is trained at its rate again
    stored = read_json(out / SPLIT_HALF_FILE, SplitHalfFile)
    seconds = train_seconds(out) or stored["seconds"]
    write_json(out / SPLIT_HALF_FILE, {**stored, "seconds": seconds, "lowered": True})
    return True


def next_fit(system: System, out: Path) -> HalfFit | None:
    """Return the next fit that calibration needs, or None if it is complete."""
    steps, stored, c = steps_wanted(system, out), _stored(system, out), system.config.train
    if c.find_lr:
        fit = _next_of_search(stored.get("tried", []), c.total_steps, tries_quarter(system))
    else:
        fit = None if calibrated_steps(system, out) == steps else HalfFit(steps)
    if fit is None and turns(system) and not stored.get("turned"):
        return HalfFit(steps, best_rate(system, out), turned=1)
    return fit


def tries_quarter(system: System) -> bool:
    """Return whether the search tries a quarter of the steps, whose effect few rows do not show."""
    return bool(system.config.train.may_shorten) or not turns(system)


def _next_of_search(tried: Sequence[Json], steps: int, quarter: bool) -> HalfFit | None:
    """Return the next fit of a search for a run of so many steps."""
    if not tried:
        return HalfFit(steps)
    if quarter and len(tried) == 1:
        return HalfFit(shortened(steps))
    if len(tried) > 1 + quarter or (quarter and tried[1]["taken"]):
        return None
    losses = [math.inf if one["loss"] is None else one["loss"] for one in tried]
    # The quarter moves the parameters less, as a lower rate does: if it is better, so is a lower rate.
    lower = losses[1] <= losses[0] if quarter else math.isinf(losses[0])
    return HalfFit(steps, MIDDLE + 1 if lower else MIDDLE - 1)


def _groups(system: System, stored: Json) -> list[list[int]]:
    """Return the groups of the held-out rows, as lists of their indices."""
    known = {row.id: row for row in system.task.train}
    return places_by_group(together([known[row["id"]] for row in stored["rows"]], passages=True))


def answers_of(rows: Sequence[Json]) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of stored rows, `S x n x C`, and the labels, `n`."""
    # JSON has no infinity: the log-probability of an option that a row does not offer is stored as null.
    known = [
        [[-math.inf if value is None else value for value in draw] for draw in row["log_probs"]]
        for row in rows
    ]
    draws = torch.tensor(known, dtype=torch.float64).transpose(0, 1)
    return draws, torch.tensor([row["label"] for row in rows])


def learnt_nll(system: System) -> float:
    """Return the NLL (nats a row) of a trained system on rows that it learned, without corrections."""
    split = system.split("train")
    split = split.take(random.Random(0).sample(range(len(split)), min(LEARNT_ROWS, len(split))))
    drawn = draw(replace(system, corrections=Corrections(system.model)), split, DRAWS)
    return nll(posterior_predictive(drawn), torch.tensor(split.labels))


def with_fit(
    system: System,
    half: System,
    held_out: EncodedSplit,
    out: Path,
    fit: HalfFit,
    seconds: float,
    own_nll: float | None,
    *,
    diverged: bool = False,
) -> Json:
    """Return what is stored once a fit is made, with its predictions unless its rate is not taken.

    `system` is the run's own, `half` the fit, `own_nll` its NLL (nats a row) on the rows that it learned, and
    `diverged` whether its loss became infinite or undefined.
    """
    there = _stored(system, out)
    drawn = draw(half, held_out, DRAWS)
    rows: list[Json] = [
        {"id": held_out.ids[i], "label": held_out.labels[i], "log_probs": drawn[:, i].tolist()}
        for i in range(len(held_out))
    ]
    so_far = there.get("seconds", 0.0) + seconds
    stored: Json = {"steps": fit.steps, "seconds": so_far, "rows": rows, "own_nll": own_nll}
    if fit.turned:
        return {**there, "seconds": so_far, "turned": rows}
    taken, c = True, system.config.train
    if c.find_lr:
        losses, tried = _losses(stored), there.get("tried", [])
        allowed = not diverged and (c.may_shorten or fit.steps == c.total_steps)
        taken = not tried or (allowed and _replaces(losses, system, there, higher=fit.rate < MIDDLE))
        loss = None if diverged else float(losses.mean())
        this = {"lr": rate_of(system, fit.rate), "steps": fit.steps, "loss": loss, "taken": taken}
        stored["tried"] = [*tried, this]
    kept = ("steps", "rows", "own_nll", "learnt_nll")
    return stored | ({"learnt_nll": learnt_nll(half)} if taken else {name: there.get(name) for name in kept})


def _losses(stored: Json) -> Tensor:
    """Return the losses (nats, `n`) of stored predictions at the temperature that suits them best."""
    draws, labels = answers_of(stored["rows"])
    return nll_per_example(predictive_at(draws, best_temperature(draws, labels)), labels)


def _replaces(losses: Tensor, system: System, there: Json, *, higher: bool) -> bool:
    """Whether a fit with these losses (nats, `n`) replaces the one whose predictions are stored.

    The one with the higher rate, or with more steps, is taken unless the other is significantly better.
    """
    if [tried for tried in there["tried"] if tried["taken"]][-1]["loss"] is None:
        return True
    kept, groups = _losses(there), _groups(system, there)
    if higher:
        return not significantly_lower(kept, losses, groups)
    return significantly_lower(losses, kept, groups)


def _predicted_nll(stored: Json) -> tuple[float, float, float]:
    """Return the ln T that suits stored predictions best, and their NLL (nats) at it and at T = 1."""
    draws, labels = answers_of([*stored["rows"], *stored.get("turned", [])])
    log_temperature = best_temperature(draws, labels)
    at_best = nll_at(draws, labels, log_temperature)
    return log_temperature, at_best, nll(posterior_predictive(draws), labels)


def fit_split_half(system: System, out: Path) -> dict[str, float]:
    """Set the temperature by predictions of held-out rows, and by how well the run fits its own rows.

    Returns:
        `temperature`; `halves_temperature`, the best for the held-out rows; `nll_1` and `nll_temperature`
        (NLL in nats of these rows at T = 1 and at that temperature), their number `rows`, `steps` of the run,
        `seconds` that calibration took, and with `find_lr` the learning rate `lr`.
    """
    stored = read_json(out / SPLIT_HALF_FILE, SplitHalfFile)
    of_halves, at_best, at_1 = _predicted_nll(stored)
    # A calibration stored by an earlier version has no `learnt_nll`.
    better = 0.0 if (of_half := stored.get("learnt_nll")) is None else of_half - learnt_nll(system)
    log_temperature = max(0.0, of_halves + max(-MOST_SURER, min(MOST_SURER, SURER * better)))
    require_temperature(system.corrections).set(log_temperature)
    found = {"lr": rate_of(system, run_rate(system, out))} if system.config.train.find_lr else {}
    return {
        "temperature": math.exp(log_temperature),
        "halves_temperature": math.exp(of_halves),
        "nll_1": at_1,
        "nll_temperature": at_best,
        "rows": float(len(stored["rows"]) + len(stored.get("turned", []))),
        "steps": float(steps_wanted(system, out)),
        "seconds": stored["seconds"],
        **found,
    }

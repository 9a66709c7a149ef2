"""A temperature without validation rows: fitted to rows that were predicted before they were learnt.

Forward calibration (Bornschein, Li and Hutter, ICLR 2023), here once training is over, to the exact minimum;
the order of training is that of `bara_pyro.data.forward`.
"""

import math
from pathlib import Path

import torch

from bara_pyro.core.prediction import predict
from bara_pyro.core.ranks import Ranks
from bara_pyro.data.forward import ForwardStep, forward_order
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.methods import METHODS
from bara_pyro.methods.best_temperature import best_common_log_temperature
from bara_pyro.metrics import nll, posterior_predictive
from bara_pyro.runs.manifest import FORWARD
from bara_pyro.runs.store import read_jsonl
from bara_pyro.runs.system import System
from bara_pyro.types import Json

# Draws a prediction. Rows that arrive in the first quarter of the steps meet a model unlike the finished one.
DRAWS, FROM, FEWEST = 4, 0.25, 20


def order_of(system: System) -> tuple[ForwardStep, ...]:
    """Return the rows of every step of a training with `adapter.calibrated`."""
    c = system.config
    return forward_order(system.model.num_data, c.train.batch_size, c.seed, c.train.total_steps)


def check_forward(system: System, ranks: Ranks) -> None:
    """Refuse, before anything is trained, what could not be calibrated so.

    Raises:
        ConfigError: several processes, a method that fits something when training is over, or too few steps.
        DataError: too few rows would be predicted.
    """
    name = system.config.method.name
    if ranks.size > 1:
        raise ConfigError(
            f"calibrated=True (adapter.calibrated) is for one process, not for {ranks.size}: leave it out."
        )
    if METHODS[name].finish is not None:
        raise ConfigError(
            f"calibrated=True (adapter.calibrated) looks at predictions of the training, and {name} fits "
            "what it predicts with afterwards: leave it out."
        )
    order = order_of(system)
    found = sum(step.new for step in order[_first(len(order)) :])
    if found < FEWEST:
        raise DataError(
            f"Of {system.model.num_data} training rows {found} would be predicted before they are learnt, "
            f"and a temperature takes {FEWEST}: leave out calibrated (adapter.calibrated)."
        )


def predicted(system: System, step: int) -> list[Json]:
    """Return what the model says, before a step (from 0), of the rows that arrive with it.

    Returns:
        A record a row: `step`, `id`, `label`, and `log_probs`, of `DRAWS` draws.
    """
    told = order_of(system)[step]
    if not told.new:
        return []
    rows = told.rows[: told.new]
    batch = system.encoded("train").batch(rows, system.answer_ids).to(system.backbone.device)
    drawn = predict(
        system.model,
        system.guide,
        batch,
        samples=DRAWS,
        seed=system.config.predict.seed,
        memory_budget=system.config.predict.memory_budget,
    )
    labels = system.split("train").labels
    return [
        {"step": step, "id": batch.ids[i], "label": labels[row], "log_probs": drawn[:, i].tolist()}
        for i, row in enumerate(rows)
    ]


def fit_forward(system: System, out: Path) -> dict[str, float]:
    """Set the temperature to the best for the predictions that training left in a folder.

    Returns:
        `temperature`, `nll_1` and `nll_temperature` (nats, of these predictions), `rows`.
    """
    first = _first(system.config.train.total_steps)
    used = [record for record in read_jsonl(out / FORWARD) if record["step"] >= first]
    draws = torch.tensor([record["log_probs"] for record in used], dtype=torch.float64).transpose(0, 1)
    labels = torch.tensor([record["label"] for record in used])
    found = best_common_log_temperature(draws, labels)
    system.model.set_temperature(found)
    after = (draws / math.exp(found)).log_softmax(-1)
    return {
        "temperature": math.exp(found),
        "nll_1": nll(posterior_predictive(draws), labels),
        "nll_temperature": nll(posterior_predictive(after), labels),
        "rows": float(len(used)),
    }


def _first(steps: int) -> int:
    return math.ceil(FROM * steps)

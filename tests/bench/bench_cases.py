"""What is known of a method's run on the bench, and what it is started with."""

import os
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from bara_pyro.methods import METHODS
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.system import System

STEPS, CHECKPOINT, STOP = 24, 10, 15
SAMPLES = 3
# `BARA_TEST_DEVICE=cuda python -m pytest tests/bench` tries every method on a GPU.
DEVICE = os.environ.get("BARA_TEST_DEVICE", "cpu")
# Methods whose package is an extra of ours.
NEEDS = {"ivon": "ivon"}


@dataclass
class Case:
    """A finished run and what was seen on the way.

    Attributes:
        config: its settings.
        out: its folder.
        system: trained.
        losses: of each step.
        before: posterior mean's log-probabilities of the training rows when nothing was trained, `n x C`.
        frozen: the backbone's tensors before anything was built on them.
        answers: log-probabilities of the test rows by number of draws, draws x rows x classes.
    """

    config: RunConfig
    out: Path
    system: System
    losses: list[float]
    before: Tensor
    frozen: dict[str, Tensor]
    answers: dict[int, Tensor]


def settings(name: str, files: Path) -> dict[str, object]:
    """Return the settings of a short run, with the rate that the method presets if it does."""
    return {
        "method": name,
        "backbone.name": str(files / "backbone"),
        "backbone.device": DEVICE,
        "task.name": str(files / "rows.jsonl"),
        "task.validation_rows": 8,
        "train.steps": STEPS,
        "train.checkpoint_every": CHECKPOINT,
        **({} if "lr" in METHODS[name].train else {"train.lr": 0.01}),
    }

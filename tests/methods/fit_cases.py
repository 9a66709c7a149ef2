"""A whole run of a method on a tiny language model: saved, read back, interrupted and resumed."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from app_cases import ONCE, questions, save_backbone, write_rows
from torch import Tensor

from bara_pyro.runs.config import RunConfig, load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train

STEPS, CHECKPOINT, STOP = 5, 2, 3


class Interrupted(Exception):
    """Stands for a kill."""


def kills(stage: str, fits: Mapping[str, int], last: int) -> dict[str, Callable[..., None]]:
    """What kills `train` in a stage: in step 3 of the fit of that number, or in step `last` of the "run"."""
    begun = 0

    def in_fit(step: int, _: dict[str, float]) -> None:
        nonlocal begun
        begun += step == 1
        if (begun, step) == (fits.get(stage), 3):
            raise Interrupted

    def in_run(step: int, _: dict[str, float]) -> None:
        if (stage, step) == ("run", last):
            raise Interrupted

    return {"on_split_half": in_fit, "on_step": in_run}


def tiny_run(folder: Path, method: dict[str, object]) -> RunConfig:
    """The configuration of a short run of `method` on a tiny random backbone, both of which it writes."""
    if not (folder / "rows.jsonl").exists():
        save_backbone(folder / "backbone")
        write_rows(folder / "rows.jsonl", questions())
    return load_config(
        overrides={
            "method": method,
            "backbone.name": str(folder / "backbone"),
            "task.name": str(folder / "rows.jsonl"),
            "train.steps": STEPS,
            "train.checkpoint_every": CHECKPOINT,
            "train.lr": 0.01,
            **ONCE,
        }
    )


def answers(system: System) -> Tensor:
    """Log-probabilities of the posterior mean and of three draws."""
    split = system.split("test")
    return torch.cat([draw(system, split, samples) for samples in (0, 3)])


def assert_runs_come_back(config: RunConfig, folder: Path) -> System:
    """Assert that a run predicts the same bits from its folder, and also when it was killed on the way."""
    whole = build_system(config)
    untrained = answers(whole)
    train(whole, folder / "whole")
    truth = answers(whole)
    assert (truth - untrained).abs().max() > 1e-4
    assert torch.equal(answers(load_system(folder / "whole")), truth)

    def stop(step: int, _: dict[str, float]) -> None:
        if step == STOP:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(build_system(config), folder / "cut", on_step=stop)
    resumed = build_system(config)
    train(resumed, folder / "cut", resume=True)
    assert torch.equal(answers(resumed), truth)
    return whole

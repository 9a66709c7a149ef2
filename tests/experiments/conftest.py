"""Fixtures of the tests of sweeps: the tiny backbone, a task in a file, and a shifted one."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# The scripts are not installed: they are run from the root of the repository.
sys.path.insert(0, str(Path(__file__).parents[2]))

from app_cases import questions, save_backbone, write_rows

from experiments.engine import sweep
from experiments.engine.sweep import Run


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the settings that all runs here share."""
    folder = tmp_path_factory.mktemp("base")
    write_rows(folder / "shifted.jsonl", [{**row, "id": f"shifted-{row['id']}"} for row in questions()[8:]])
    return {
        "backbone.name": str(save_backbone(folder / "backbone")),
        "task.name": str(write_rows(folder / "colours.jsonl", questions())),
        "train.steps": 6,
        "predict.samples": [0, 3],
    }


@pytest.fixture(scope="session")
def shifted(base: dict[str, Any]) -> str:
    """Return the name of the shifted task."""
    return str(Path(base["task.name"]).with_name("shifted.jsonl"))


@pytest.fixture
def job(base: dict[str, Any], tmp_path: Path) -> Callable[..., Run]:
    """Return a maker of runs in the folder of the test: `job("lora", seed=1, shifted=(...))`."""

    def make(method: str = "lora", *, shifted: tuple[str, ...] = (), **settings: Any) -> Run:
        return Run({**base, "method": method, **settings}, tmp_path, shifted)

    return make


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the method of every run whose training starts or goes on."""
    names = []
    real = sweep.train

    def train(system, out: Path, **options) -> None:
        finished = (out / "guide.safetensors").exists()
        real(system, out, **options)
        if not finished:
            names.append(system.config.method.name)

    monkeypatch.setattr(sweep, "train", train)
    return names

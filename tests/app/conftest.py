"""Fixtures of the tests of runs, commands and files."""

from pathlib import Path

import pytest
from app_cases import Bara, Place, make_bara, questions, save_backbone, write_rows


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("place")
    return Place(save_backbone(folder / "backbone"), write_rows(folder / "colours.jsonl", questions()))


@pytest.fixture
def bara(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bara:
    return make_bara(monkeypatch, capsys)


@pytest.fixture(scope="module")
def finished(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of BaRA; tests copy it before they change it."""
    from bara_pyro.cli.running import run
    from bara_pyro.runs.config import load_config

    out = tmp_path_factory.mktemp("finished") / "run"
    settings = {
        "backbone.name": str(place.backbone),
        "task.name": str(place.rows),
        "train.steps": 8,
        "train.log_every": 1,
        "predict.samples": [0, 3],
    }
    run(load_config(overrides=settings), out)
    return out

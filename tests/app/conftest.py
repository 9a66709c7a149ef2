"""Fixtures of the tests of runs, commands and files."""

import shutil
from pathlib import Path

import pytest
from app_cases import Place

from bara_pyro.cli.running import run as train


@pytest.fixture(scope="session")
def shared_run(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of BaRA, trained once."""
    out = tmp_path_factory.mktemp("trained") / "run"
    train(place.config(train__steps=8, predict__samples=[0, 3]), out)
    return out


@pytest.fixture(scope="module")
def finished(shared_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run for the tests of one module, which copy it before they change it."""
    return shutil.copytree(shared_run, tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to be changed or spoiled."""
    return shutil.copytree(finished, tmp_path / "copy")

"""Fixtures of the tests of lm-evaluation-harness, all of which are skipped where it is not installed."""

import os
from pathlib import Path

import pytest
from app_cases import Bara, Place, make_bara, questions, save_backbone, write_rows

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'bara-pyro[lm-eval]'")


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("harness")
    return Place(save_backbone(folder / "backbone"), write_rows(folder / "colours.jsonl", questions()))


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from harness_cases import write_tasks

    return write_tasks(tmp_path_factory.mktemp("rows"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what `datasets` makes of the rows out of the user's cache."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")
    monkeypatch.setitem(os.environ, "TOKENIZERS_PARALLELISM", "false")


@pytest.fixture
def bara(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bara:
    return make_bara(monkeypatch, capsys)

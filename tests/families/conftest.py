"""Rows to train on."""

from pathlib import Path

import pytest
from app_cases import Place, questions, write_rows


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("families")
    return Place(Path(), write_rows(folder / "colours.jsonl", questions()))

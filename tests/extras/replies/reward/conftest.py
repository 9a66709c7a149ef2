"""Folders of tiny models, and the command line."""

from pathlib import Path

import pytest
from reward_cases import save_classifier, save_lm


@pytest.fixture(scope="session")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_lm(tmp_path_factory.mktemp("lm"))


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("classifier"))

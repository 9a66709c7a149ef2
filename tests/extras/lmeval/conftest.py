"""Fixtures of the tests of lm-evaluation-harness, all of which are skipped where it is not installed."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest


class Skipped(pytest.Module):
    """A module that is not even imported."""

    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip("lm-eval is not installed: pip install 'bara-pyro[lm-eval]'", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return Skipped.from_parent(parent, path=module_path) if find_spec("lm_eval") is None else None


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from harness_cases import write_tasks

    return write_tasks(tmp_path_factory.mktemp("rows"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what `datasets` makes of the rows out of the user's cache."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")
    monkeypatch.setitem(os.environ, "TOKENIZERS_PARALLELISM", "false")

"""A run to ask, and rows to ask about."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from app_cases import Place, questions
from serving_cases import SAMPLES

from bara_pyro.cli.running import run as train
from bara_pyro.runs.folder import load_system

if TYPE_CHECKING:
    from bara_pyro.extras.serve.http.engine import RunEngine


@pytest.fixture(scope="session")
def run(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of BaRA whose draws disagree: a high learning rate moves B away from 0."""
    out = tmp_path_factory.mktemp("finished") / "run"
    train(place.config(train__steps=30, train__lr=0.05, predict__samples=[0, 3]), out)
    return out


@pytest.fixture(scope="session")
def engine(run: Path) -> "RunEngine":
    from bara_pyro.extras.serve.http.engine import RunEngine

    return RunEngine(load_system(run, with_rows=False), samples=SAMPLES)


@pytest.fixture(scope="session")
def rows() -> list[dict[str, str]]:
    """Rows of several lengths, without answers, under ids of their own."""
    plain = [{"id": row["id"], "question": row["question"]} for row in questions()]
    longer = [
        {"id": f"{row['id']}-x", "question": f"{row['question']} no yes {row['question']}"} for row in plain
    ]
    return [row for pair in zip(plain, longer, strict=True) for row in pair]

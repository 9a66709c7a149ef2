"""A finished run to be spoilt, and the language model that it was trained on."""

from pathlib import Path

import pytest
from app_cases import Place

from bara_pyro.cli.running import run as train
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train as fit


@pytest.fixture(scope="session")
def finished(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of BaRA; tests copy it before they change it."""
    out = tmp_path_factory.mktemp("finished") / "run"
    train(place.config(train__steps=2, predict__samples=[0, 3]), out)
    return out


@pytest.fixture(scope="session", params=["bara", "ivon"])
def stopped(place: Place, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after the second of four steps; tests copy it before they change it."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    config = place.config(method=request.param, train__steps=4, train__checkpoint_every=2, train__warmup=1)

    def stop(step: int, _: object) -> None:
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(build_system(config), out, on_step=stop)
    return out

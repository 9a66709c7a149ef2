"""A tiny run of every registered method: a new one is run through this bench by being registered."""

from pathlib import Path

import pytest
from app_cases import questions, save_backbone, write_rows
from bench_cases import DEVICE, NEEDS, SAMPLES, Case, settings

from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import load_backbone
from bara_pyro.methods import METHODS
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train


@pytest.fixture(scope="session")
def bench_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    save_backbone(folder / "backbone")
    write_rows(folder / "rows.jsonl", questions())
    return folder


@pytest.fixture(scope="session")
def shared(bench_files: Path) -> Backbone:
    """The one backbone that all methods are attached to, in turn."""
    return load_backbone(str(bench_files / "backbone"), device=DEVICE)


@pytest.fixture(scope="session", params=list(METHODS))
def case(
    request: pytest.FixtureRequest,
    bench_files: Path,
    shared: Backbone,
    tmp_path_factory: pytest.TempPathFactory,
) -> Case:
    """A finished run of the method."""
    name: str = request.param
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{name} needs an extra of this package")
    config = load_config(overrides=settings(name, bench_files))
    frozen = {key: value.clone() for key, value in shared.lm.state_dict().items()}
    system = build_system(config, shared)
    before = draw(system, system.split("train"), 0).logsumexp(dim=0)
    losses: list[float] = []
    out = tmp_path_factory.mktemp(name) / "run"
    train(system, out, on_step=lambda _, figures: losses.append(figures["loss"]))
    answers = {samples: draw(system, system.split("test"), samples) for samples in (0, SAMPLES)}
    return Case(config, out, system, losses, before, frozen, answers)

"""How long training is where nobody says."""

from math import ceil

import pytest

from bara_pyro.errors import ConfigError
from bara_pyro.runs.config import load_config
from bara_pyro.runs.system import build_system, default_steps


@pytest.mark.parametrize("rows", [1, 199, 200, 201, 640, 1119, 1201, 10**6])
def test_passes_between_bounds(rows: int) -> None:
    wanted = ceil(20 * rows / 4)
    steps = default_steps(rows, 4)
    assert steps == sorted((1000, wanted, 6000))[1]
    assert default_steps(rows, 8) == sorted((1000, ceil(20 * rows / 8), 6000))[1]
    assert default_steps(rows, 4, replies=True) == min(ceil(2 * rows / 4), 6000)


@pytest.mark.parametrize(
    ("given", "steps"),
    [({}, 20 * 640 // 4), ({"train.steps": 7}, 7), ({"train.epochs": 2.5}, 400)],
)
def test_rows_say_how_long(given: dict[str, float], steps: int) -> None:
    config = load_config(overrides={"task.name": "micro-wgs", **given})
    system = build_system(config)
    assert system.config.train.total_steps == system.config.train.steps == steps
    assert system.config.train.epochs is None


def test_without_rows_the_length_is_not_known() -> None:
    with pytest.raises(ConfigError, match="follows from the training rows"):
        load_config().train.total_steps  # noqa: B018

"""What follows from the number of training rows where nobody says: length of training, noise at its start."""

from math import ceil, expm1, log, sqrt
from pathlib import Path

import pytest
from torch.nn import functional as F

from bara_pyro.errors import ConfigError
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.lm.loading import load_backbone
from bara_pyro.models.bara import BaRA
from bara_pyro.runs.config import default_steps, for_rows, load_config
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.stored import resumed
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from bara_pyro.runs.writing import write_config


@pytest.mark.parametrize(
    ("rows", "passes"),
    [(1, 10), (39, 10), (80, 10), (320, 10), (400, 12.5), (639, 639 / 32), (640, 20), (10**6, 20)],
)
def test_passes_between_bounds(rows: int, passes: float) -> None:
    assert default_steps(rows, 4) == sorted((100, ceil(passes * rows / 4), 6000))[1]
    assert default_steps(rows, 8) == sorted((100, ceil(passes * rows / 8), 6000))[1]
    assert default_steps(rows, 4, replies=True) == min(ceil(2 * rows / 4), 6000)


@pytest.mark.parametrize(
    ("given", "steps"), [({}, 20 * 640 // 4), ({"train.steps": 7}, 7), ({"train.epochs": 2.5}, 400)]
)
def test_rows_say_how_long(given: dict[str, float], steps: int) -> None:
    train = for_rows(load_config(overrides=given), 640).train
    assert train.total_steps == train.steps == steps
    assert train.epochs is None


@pytest.mark.parametrize(
    ("settings", "steps", "find_lr", "may_double"),
    [
        ({}, 800, True, None),
        ({"adapter.calibrated": True}, 800, True, None),
        ({"adapter.calibrated": True, "method": "lora"}, 800, True, None),
        ({"adapter.calibrated": False}, 400, None, None),
        ({"method": "lora"}, 800, True, None),
        ({"method": "lora", "adapter.calibrated": False}, 400, None, None),
        ({"method": "blob"}, 800, True, None),
        ({"method": "temperature"}, 400, None, None),
        ({"train.steps": 800}, 800, None, None),
        ({"train.epochs": 3}, 120, None, None),
        ({"train.steps": 800, "train.find_lr": True}, 800, True, None),
        ({"train.find_lr": False}, 400, False, True),
        ({"train.lr": 0.002}, 400, None, True),
        ({"train.lr": 0.002, "train.find_lr": True}, 800, True, None),
        ({"train.lr": 0.002, "train.may_double": False}, 400, None, False),
        ({"train.may_double": False}, 800, True, False),
        ({"train.may_double": True}, 400, None, True),
        ({"train.steps": 50, "train.may_double": True}, 50, None, True),
    ],
)
def test_split_half_calibration_sets_the_rate_or_the_length_by_default(
    settings: dict[str, object], steps: int, find_lr: bool | None, may_double: bool | None
) -> None:
    config = load_config(overrides={"method": "bara-gate", "task.name": "micro-wgs", **settings})
    found = for_rows(config, 160).train
    assert (found.steps, found.find_lr, found.may_double) == (steps, find_lr, may_double)


def test_a_system_has_the_settings_of_its_rows() -> None:
    given = {"method": "bara-gate", "task.name": "micro-wgs", "task.train_rows": 160}
    config = load_config(overrides=given)
    assert build_system(config).config == for_rows(config, 160) != config


def test_without_split_half_calibration_training_never_gets_longer() -> None:
    given = {"method": "temperature", "task.name": "micro-wgs", "train.may_double": True}
    with pytest.raises(ConfigError, match=r"train\.may_double=true"):
        for_rows(load_config(overrides=given), 160)


def test_steps_and_epochs_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "both.yaml").write_text("train: {steps: 150, epochs: 2}")
    (tmp_path / "one.yaml").write_text("train: {steps: 150}")
    said = r"train\.steps=150 and train\.epochs=2 "
    for path, overrides in (
        (tmp_path / "both.yaml", {}),
        (tmp_path / "one.yaml", {"train.epochs": 2}),
        (None, {"train.steps": 150, "train.epochs": 2}),
    ):
        with pytest.raises(ConfigError, match=said):
            load_config(path, overrides)
    assert load_config(tmp_path / "one.yaml", {"train.epochs": 2}, ["train.steps=null"]).train.steps is None
    passes = load_config(overrides={"train.epochs": 2})
    for given, base in (
        ({"train.steps": 5}, passes),
        ({"train.epochs": 2}, load_config(tmp_path / "one.yaml")),
    ):
        found = load_config(overrides=given, base=base).train  # what is given stands in place of the base's
        assert {f"train.{key}": getattr(found, key) for key in ("steps", "epochs")}.items() > given.items()


def test_a_run_goes_on_by_the_passes_that_gave_its_steps(tmp_path: Path) -> None:
    """Its settings hold steps; the same passes are the same steps, and both together are none of them."""
    given = {"method": "lora", "task.name": "micro-wgs", "task.limit": 8, "train.epochs": 3}
    system = build_system(load_config(overrides=given))
    write_config(system, tmp_path)
    assert resumed(tmp_path, None, {"train.epochs": 3}, [])[1] == system.config
    assert resumed(tmp_path, None, {}, ["train.epochs=null"])[1] == system.config
    with pytest.raises(ConfigError, match=r"another train\.steps"):
        resumed(tmp_path, None, {"train.epochs": 5}, [])
    with pytest.raises(ConfigError, match="give only one"):
        resumed(tmp_path, None, {"train.epochs": 3, "train.steps": 6}, [])


def test_without_rows_the_length_is_not_known() -> None:
    with pytest.raises(ConfigError, match="depends on the training rows"):
        load_config().train.total_steps  # noqa: B018


@pytest.mark.parametrize(("rows", "noise"), [(1, 0.5), (2560, 0.5), (10240, 0.25), (10**9, 0.1)])
@pytest.mark.parametrize("shape", ["kappa", "k"])
def test_noise_starts_as_wide_as_a_posterior_of_so_many_rows(rows: int, noise: float, shape: str) -> None:
    model = BaRA(load_backbone("microworld"), rows, target_modules=["q_proj"])
    guide = WeibullGuide(model, shape=shape)
    level = F.softplus(guide.start[-1]).item()
    assert (level if shape == "kappa" else 1 / level) == pytest.approx(noise, rel=1e-5)
    capped = WeibullGuide(model, max_kappa=0.2)
    assert F.softplus(capped.start[-1]).item() == pytest.approx(min(noise, 0.2), rel=1e-5)
    assert F.softplus(WeibullGuide(model, init_kappa=0.3).start[-1]).item() == pytest.approx(0.3, rel=1e-5)


@pytest.mark.slow
def test_a_run_keeps_the_noise_that_its_rows_gave_it(tmp_path: Path) -> None:
    """Its files hold deviations from where training started, whatever the rows are when it is read."""
    given = {"method": "bara-gate", "task.name": "micro-obqa", "train.steps": 1}
    system = build_system(load_config(overrides=given))
    wanted = 0.5 * sqrt(2560 / system.model.num_data)
    assert system.model.num_data == 4957
    assert system.config.method.init_kappa == pytest.approx(wanted)
    train(system, tmp_path / "run")
    (loaded := load_system(tmp_path / "run")).model.num_data = 7
    assert loaded.config.method.init_kappa == pytest.approx(wanted)
    start = loaded.guide.start[-1].item()
    assert start == system.guide.start[-1].item() == pytest.approx(wanted + log(-expm1(-wanted)))
    few = build_system(load_config(overrides={**given, "task.train_rows": 80}))
    assert few.config.method.init_kappa == 0.5
    chosen = build_system(load_config(overrides={**given, "method.init_kappa": 0.7}))
    assert chosen.config.method.init_kappa == 0.7


def test_a_setting_left_to_the_rows_again_is_the_setting_of_the_run(tmp_path: Path) -> None:
    given = {"method": "bara", "task.name": "micro-wgm", "task.limit": 8, "adapter.r": 2}
    system = build_system(load_config(overrides=given))
    write_config(system, tmp_path)
    started, again = resumed(tmp_path, None, {}, ["method.init_kappa=null", "train.steps=null"])
    assert started == again == system.config
    with pytest.raises(ConfigError, match=r"another method\.init_kappa"):
        resumed(tmp_path, None, {}, ["method.init_kappa=0.4"])
    with pytest.raises(ConfigError, match=r"another train\.steps"):
        resumed(tmp_path, None, {}, ["train.steps=7"])

"""What is typed for a study: it is in the configuration of every run, or the study refuses it by its name."""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from setting_cases import at, other_settings, value_at

from bara_pyro.errors import ConfigError
from bara_pyro.runs.assignments import setting_fields
from bara_pyro.runs.config import RunConfig, load_config
from experiments.__main__ import COMMANDS
from experiments.engine import run, sweep
from experiments.engine.arguments import ARGUMENTS, Typed, experiment_parser
from experiments.engine.record import identity
from experiments.engine.results import study_names
from experiments.engine.sweep import Run

STUDIES = study_names()
CHOSEN = {"train.lr": 1.2e-3, "train.steps": 77, "train.clip_norm": 0.5}


class Reached(Exception):
    """Where the runs of a study would begin."""


Plan = Callable[..., list[Run]]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Return what gives the jobs of a study that somebody typed: `planned(name, "--seeds", "1")`."""

    def of(name: str, *typed: str) -> list[Run]:
        seen: list[Run] = []

        def stop(jobs: list[Run], *_: Any, **__: Any) -> None:
            seen.extend(jobs)
            raise Reached

        module = import_module(f"experiments.studies.{name}.study")
        for place in (sweep, run):
            monkeypatch.setattr(place, "sweep", stop)
        monkeypatch.setattr(module, "chosen", lambda *_, **__: dict(CHOSEN), raising=False)
        monkeypatch.setattr(sys, "argv", [name, "--seeds", "1", *typed])
        with pytest.raises(Reached):
            module.main()
        return seen

    return of


def smallest(planned: Plan, study: str) -> tuple[str, tuple[str, ...]]:
    """Return a method of a study, the last that it has, and arguments for that method and one task alone."""
    jobs = planned(study)
    method, tasks = jobs[-1].settings["method"], {job.settings["task.name"] for job in jobs}
    return method, ("--methods", method, *(("--tasks", min(tasks)) if len(tasks) > 1 else ()))


def configs_or_refusal(planned: Plan, study: str, *typed: str) -> list[RunConfig] | str:
    """Return the configurations of a study's runs, or why it refuses what was typed."""
    try:
        return [load_config(overrides=dict(job.settings)) for job in planned(study, *typed)]
    except ConfigError as error:
        return str(error)


def kept_or_refused(planned: Plan, study: str, key: str, value: Any, small: tuple[str, ...]) -> bool:
    """Whether a setting that was typed is in every run; that it is refused by its name otherwise."""
    configs = configs_or_refusal(planned, study, *small, "--set", f"{key}={json.dumps(value)}")
    if isinstance(configs, str):
        assert key.rpartition(".")[2] in configs
        return False
    for config in configs:
        found = at(identity(config, {})["config"], key)
        assert found == value, f"{study}: {key}={value!r} was typed, and a run has {found!r}"
    return True


@pytest.mark.parametrize("study", STUDIES)
def test_every_setting_is_kept_or_refused_by_its_name(study: str, planned: Plan) -> None:
    method, small = smallest(planned, study)
    kept = [
        key
        for key, value in other_settings(method).items()
        if kept_or_refused(planned, study, key, value, small)
    ]
    assert len(kept) > 3, kept
    assert not {*kept} & {*ARGUMENTS}  # --set gives way to the argument, which says more


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_hands_on_what_is_typed(study: str, planned: Plan) -> None:
    configs = configs_or_refusal(planned, study, *smallest(planned, study)[1], "--set", "train.batch_size=3")
    assert not isinstance(configs, str)
    assert {config.train.batch_size for config in configs} == {3}


@pytest.mark.parametrize("study", STUDIES)
def test_null_and_the_default_are_values_that_somebody_types(study: str, planned: Plan) -> None:
    """Both take the place of what the study presets."""
    typed = {}
    for key, field in setting_fields().items():
        default = field.get_default(call_default_factory=True)
        if not isinstance(default, Path):
            typed[key] = default
    assert "adapter.target_modules" in typed
    small = smallest(planned, study)[1]
    for key, value in typed.items():
        if key not in ARGUMENTS:
            configs = configs_or_refusal(planned, study, *small, "--set", f"{key}={json.dumps(value)}")
            if isinstance(configs, str):
                assert key.rpartition(".")[2] in configs
            else:
                assert all(value_at(config, key) == value for config in configs), (key, value)


@pytest.mark.parametrize(
    ("study", "typed", "key", "value"),
    [
        ("in_distribution", ("--set", "train.lr=1e-4"), "train.lr", 1e-4),
        ("in_distribution", ("--set", "train.clip_norm=null"), "train.clip_norm", None),
        ("in_distribution", ("--steps", "1000"), "train.steps", 1000),  # the default, typed
        ("in_distribution", ("--steps", "default"), "train.steps", None),
        ("in_distribution", (), "train.steps", 77),  # chosen, as nobody types another
        ("in_distribution", (), "train.lr", 1.2e-3),
        ("in_distribution", ("--set", "train={lr: 1e-4}"), "train.lr", 1e-4),
    ],
)
def test_what_is_typed_takes_the_place_of_what_was_chosen(
    study: str, typed: tuple[str, ...], key: str, value: Any, planned: Plan
) -> None:
    jobs = planned(study, *typed)
    assert all(value_at(load_config(overrides=dict(job.settings)), key) == value for job in jobs)
    if typed[:1] == ("--set",):
        assert all(identity(load_config(), job.settings)["settings"][key] == value for job in jobs)


@pytest.mark.parametrize(
    ("study", "typed", "named"),
    [
        ("in_distribution", ("--set", "train.steps=5"), "--steps"),
        ("in_distribution", ("--set", "seed=5"), "--seeds"),
        ("in_distribution", ("--set", "task={name: micro-wgs}"), "--tasks"),
        ("in_distribution", ("--set", "method={name: lora}"), "--methods"),
        ("in_distribution", ("--set", "train.lr=1e-4", "--set", "train.lr=1e-3"), "twice"),
    ],
)
def test_what_a_study_varies_is_refused(
    study: str, typed: tuple[str, ...], named: str, planned: Plan
) -> None:
    with pytest.raises(ConfigError, match=named):
        planned(study, *typed)


def test_the_same_as_the_study_is_no_contradiction(planned: Plan) -> None:
    jobs = planned("in_distribution", "--set", f"train.lr={CHOSEN['train.lr']}")
    assert all(job.settings["train.lr"] == CHOSEN["train.lr"] for job in jobs)


class Parsed(Exception):
    """Where a command would begin."""


def parser_of(name: str, monkeypatch: pytest.MonkeyPatch) -> ArgumentParser:
    """Return the parser of a command."""

    def stop(parser: ArgumentParser, *_: object) -> None:
        raise Parsed(parser)

    monkeypatch.setattr("sys.argv", [name])
    main = import_module(COMMANDS.get(name, f"experiments.studies.{name}.study")).main
    with monkeypatch.context() as patched:
        patched.setattr(ArgumentParser, "parse_args", stop)
        with pytest.raises(Parsed) as parsed:
            main()
    return parsed.value.args[0]


@pytest.mark.parametrize("name", sorted({*COMMANDS, *study_names()} - {"paper"}))
def test_options_of_every_command_know_what_was_typed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    valued = [option for option in parser_of(name, monkeypatch)._actions if option.nargs != 0]
    assert all(isinstance(one, Typed) for one in valued if one.dest != "assignments")


def test_two_values_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = experiment_parser("")
    assert parser.parse_args([]).typed == {}
    assert parser.parse_args(["--steps", "1000", "--steps", "1000"]).typed == {"steps": 1000}  # the default
    with pytest.raises(SystemExit):
        parser.parse_args(["--steps", "2", "--steps", "3"])
    assert "--steps 2 and --steps 3" in capsys.readouterr().err

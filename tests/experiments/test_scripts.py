"""The scripts of the experiments: what they ask for is a run of its own, and settings that there are."""

import sys
from importlib import import_module
from typing import Any

import pytest

from bara_pyro.errors import ConfigError
from bara_pyro.methods import METHODS
from bara_pyro.runs.config import RunConfig, load_config
from experiments.engine.arguments import run_settings
from experiments.engine.methods import chosen
from experiments.engine.results import load_study
from experiments.page import spec
from experiments.page.spec import find_study, run_facts, study_names

SCRIPTS = [name for name in study_names() if find_study(name).facts is run_facts]
RATES = {"train.lr": 0.002}
UNTUNED = ("untuned",)


def study_of(script: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of a study, with choices that nobody studied for."""
    module = import_module(f"experiments.studies.{script}.study")
    for place in (module, spec):
        monkeypatch.setattr(place, "chosen", lambda *_: RATES, raising=False)
    return module


def asked_for(script: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any], Any]:
    """Run a script without its runs; return the name, the arms and the arguments that it came to."""
    calls: list[Any] = []
    monkeypatch.setattr(spec, "run_study", lambda *given: calls.append(given[:3]))
    monkeypatch.setattr(spec, "load_study", lambda *_: load_study("untuned"))
    monkeypatch.setattr(sys, "argv", [script])
    study_of(script, monkeypatch).STUDY.main()
    (call,) = calls
    return call


def config_of(arm: Any, args: Any, task: str) -> RunConfig:
    """Return the configuration of an arm's first seed."""
    return load_config(overrides=run_settings(args, {"task.name": task, "seed": 0, **arm}))


@pytest.mark.parametrize("script", SCRIPTS)
def test_arms_are_different_runs_that_can_be_started(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, arms, args = asked_for(script, monkeypatch)
    assert name == script
    assert len(arms) > 2
    task = args.tasks[0]
    configs = [config_of(arm, args, task) for arm in arms.values()]
    assert len({config.hash for config in configs}) == len(arms)
    assert {config.train.lr for config in configs} == {1e-3 if script in UNTUNED else RATES["train.lr"]}


def test_the_main_table_has_every_method_with_chosen_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    _, arms, args = asked_for("in_distribution", monkeypatch)
    assert {"lora", "temperature", "bara", "bara-gate"} <= set(arms) <= set(METHODS)
    assert all("train.lr" in chosen(name) for name in arms)  # `chosen` itself, which `asked_for` replaces
    for name in set(METHODS) - set(arms):
        with pytest.raises(ConfigError, match=name):
            chosen(name)
    assert len(args.tasks) == 6

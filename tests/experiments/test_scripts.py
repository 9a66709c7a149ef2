"""The scripts of the experiments: what they ask for is a run of its own, and settings that there are."""

import sys
from importlib import import_module
from typing import Any

import pytest

from bara_pyro.errors import ConfigError
from bara_pyro.methods import METHODS
from bara_pyro.runs.config import load_config
from experiments.engine.arguments import run_settings
from experiments.engine.methods import chosen
from experiments.engine.results import study_names


def asked_for(script: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any], Any]:
    """Run a script without its runs; return the name, the arms and the arguments that it came to."""
    calls: list[Any] = []
    module = import_module(f"experiments.studies.{script}.study")
    monkeypatch.setattr(module, "run_study", lambda *given: calls.append(given[:3]))
    monkeypatch.setattr(sys, "argv", [script])
    module.main()
    (call,) = calls
    return call


@pytest.mark.parametrize("script", study_names())
def test_arms_are_different_runs_that_can_be_started(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, arms, args = asked_for(script, monkeypatch)
    assert name == script
    assert len(arms) > 2
    own = {"task.name": args.tasks[0], "seed": 0}
    configs = [load_config(overrides=run_settings(args, {**own, **arm})) for arm in arms.values()]
    assert len({config.hash for config in configs}) == len(arms)


def test_the_main_table_has_every_method_with_chosen_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    _, arms, args = asked_for("in_distribution", monkeypatch)
    assert {"lora", "temperature", "bara", "bara-gate"} <= set(arms) <= set(METHODS)
    for name, arm in arms.items():
        config = load_config(overrides=run_settings(args, {"task.name": args.tasks[0], **arm}))
        assert config.train.lr == chosen(name)["train.lr"]
    for name in set(METHODS) - set(arms):
        with pytest.raises(ConfigError, match=name):
            chosen(name)
    assert len(args.tasks) == 6

"""The scripts of the experiments: what they ask for is a run of its own, and settings that there are."""

import sys
from importlib import import_module
from typing import Any

import pytest

from bara_pyro.methods import METHODS
from bara_pyro.runs.config import RunConfig, load_config
from experiments.engine import search
from experiments.engine.arguments import preset, run_settings
from experiments.engine.methods import searched
from experiments.engine.run import SEED
from experiments.page import spec
from experiments.page.spec import find_study, run_facts, study_names

SCRIPTS = [name for name in study_names() if find_study(name).facts is run_facts]
RATES = {"train.lr": 0.002}
UNTUNED = ("real", "untuned", "distance", "learning_curves")
FOUND = {"laplace": {"method.prior_precision": 100.0}}


def study_of(script: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of a study, with choices that nobody searched for."""
    module = import_module(f"experiments.studies.{script}.study")
    for place in (module, search):
        monkeypatch.setattr(place, "chosen", lambda method, *_: RATES | FOUND.get(method, {}), raising=False)
    return module


def asked_for(
    script: str, monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[str, dict[str, Any], Any, dict[str, Any]]:
    """Run a script without its runs; return the name, the arms, the arguments and more that it came to."""
    calls: list[Any] = []
    run = lambda name, arms, args, **more: calls.append((name, arms, args, more))  # noqa: E731
    monkeypatch.setattr(spec, "run_study", run)
    monkeypatch.setattr(spec, "show_tables", lambda *_: None)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    study_of(script, monkeypatch).STUDY.main()
    (call,) = calls
    return call


def config_of(arm: Any, args: Any, task: str) -> RunConfig:
    """Return the configuration of an arm's first seed."""
    own = arm(task) if callable(arm) else arm
    drawn = {key: 0 if value is SEED else value for key, value in own.items()}
    return load_config(overrides=run_settings(args, {"task.name": task, "seed": 0, **drawn}))


@pytest.mark.parametrize("script", SCRIPTS)
def test_arms_are_different_runs_that_can_be_started(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, arms, args, _ = asked_for(script, monkeypatch)
    assert name == script
    assert len(arms) > (1 if script == "real_contrast" else 2)  # whose plan has two
    task = args.tasks[0]
    configs = [config_of(arm, args, task) for arm in arms.values()]
    assert len({config.hash for config in configs}) == len(arms)
    by_default = ("bara-gate", "bara", "lora") if script == "real_contrast" else ()
    for config in configs:
        own = script in UNTUNED or config.method.name in by_default
        assert script == "regret" or config.train.lr == (1e-3 if own else RATES["train.lr"])


def test_the_main_table_has_every_method(monkeypatch: pytest.MonkeyPatch) -> None:
    _, arms, args, _ = asked_for("in_distribution", monkeypatch)
    assert set(arms) == set(METHODS) == set(searched())
    assert len(args.tasks) == 6


def test_published_recipes_take_the_rate_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _, arms, args, _ = asked_for("reproductions", monkeypatch, "--methods", "laplace", "blob")
    published = arms["blob, two optimisers, G by SGD alone"]
    assert published == {"method": "blob", "method.recipe": "reproduction", **preset(RATES)}
    precisions = {
        name.removeprefix("laplace, "): config_of(arm, args, "micro-wgs").method.prior_precision
        for name, arm in arms.items()
        if name.startswith("laplace")
    }
    assert precisions == {
        "prior precision of the search": 100.0,
        "evidence maximised": None,
        "evidence, curvature summed over tokens": None,
        "prior precision left at 1": 1.0,
    }


def test_shifted_tasks_are_those_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    more = asked_for("out_of_distribution", monkeypatch, "--shifted", "micro-far")[3]
    assert (more["shifted"], more["comparisons"].tested_on) == ({"micro-obqa": ["micro-far"]}, ("micro-far",))

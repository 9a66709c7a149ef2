"""The scripts of the experiments: what they ask for is a run of its own, and settings that there are."""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from bara_pyro.methods import METHODS
from bara_pyro.runs.config import load_config
from experiments.engine.arguments import shared_settings
from experiments.engine.spaces import SPACES

SCRIPTS = (
    "in_distribution",
    "out_of_distribution",
    "untuned",
    "parameter_budget",
    "backbones",
    "hierarchy",
    "prior_sensitivity",
    "guides_and_gates",
    "remedies",
    "reproductions",
)
LOOKS = ("sparsity", "pruning", "leave_one_out", "uncertainty", "reference_posterior", "sbc", "pac_bayes")
RATES = {"train.lr": 0.002}


def asked_for(
    script: str, monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[str, dict[str, Any], Any]:
    """Run a script without its runs; return the name, the arms and the arguments that it has come to."""
    module, calls = import_module(f"experiments.studies.{script}.study"), []
    found = {"laplace": {"method.prior_precision": 100.0}}
    monkeypatch.setattr(module, "chosen", lambda method: RATES | found.get(method, {}), raising=False)
    monkeypatch.setattr(module, "conduct", lambda name, arms, args, **_: calls.append((name, arms, args)))
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    module.main()
    (call,) = calls
    return call


@pytest.mark.parametrize("script", SCRIPTS)
def test_arms_are_different_runs_that_can_be_started(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, arms, args = asked_for(script, monkeypatch)
    assert name == script
    assert len(arms) > 2
    hashes = {
        load_config(overrides={**settings, "task.name": args.tasks[0]}).hash for settings in arms.values()
    }
    assert len(hashes) == len(arms)
    for settings in arms.values():
        rate = 1e-3 if script == "untuned" else RATES["train.lr"]
        assert load_config(overrides=dict(settings)).train.lr == rate


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as stopped:
        import_module(f"experiments.studies.{script}.study").main()
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    for option in ("--model", "--data-dir", "--methods", "--tasks", "--seeds", "--steps", "--launcher"):
        assert option in said


@pytest.mark.parametrize("script", [*LOOKS, "efficiency"])
def test_every_option_is_explained(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as stopped:
        import_module(f"experiments.studies.{script}.study").main()
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert f"python -m experiments {script}" in said
    options = said.split("\noptions:\n")[1]
    for option in re.split(r"\n  (?=-)", options):
        assert re.search(r"(  +|\n +)\S.*[a-z]{2}", option), option


def test_the_main_table_has_every_method(monkeypatch: pytest.MonkeyPatch) -> None:
    _, arms, args = asked_for("in_distribution", monkeypatch)
    assert set(arms) == set(METHODS) == set(SPACES)
    assert len(args.tasks) == 6


def test_larger_baselines_keep_their_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    _, arms, _ = asked_for("parameter_budget", monkeypatch)
    for name, settings in arms.items():
        adapter = load_config(overrides=dict(settings)).adapter
        assert adapter.lora_alpha / adapter.r == 2.0
        assert f"r = {adapter.r}" in name


def test_published_recipes_take_the_rate_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = import_module("experiments.studies.reproductions.study")
    chosen: Callable[[str], dict] = lambda method: {"train.lr": 0.002, "method.beta": 0.1}  # noqa: E731
    monkeypatch.setattr(module, "chosen", chosen)
    assert module._settings("blob", {}) == {"train.lr": 0.002, "method.beta": 0.1}
    assert module._settings("blob", module.PUBLISHED) == {"train.lr": 0.002, "method.recipe": "reproduction"}


def test_evidence_is_maximised_whatever_the_search_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = import_module("experiments.studies.reproductions.study")
    monkeypatch.setattr(module, "chosen", lambda method: {"train.lr": 0.002, "method.prior_precision": 100.0})
    for name, variant in module.VARIANTS["laplace"].items():
        config = load_config(overrides={"method": "laplace", **module._settings("laplace", variant)})
        expected = {
            "evidence": None,
            "prior precision of the search": 100.0,
            "prior precision left at 1": 1.0,
        }
        (precision,) = [value for key, value in expected.items() if name.startswith(key)]
        assert config.method.prior_precision == precision


def test_remedies_look_at_validation_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _, arms, args = asked_for("remedies", monkeypatch)
    for settings in arms.values():
        config = load_config(overrides={**shared_settings(args), "task.name": "micro-wgs", **settings})
        assert config.task.evaluate_on == "validation"


def test_remedies_try_the_rates_that_the_search_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = import_module("experiments.studies.remedies.study")
    on_grid = module.common({"method": "bara", "train.lr": 1.2e-3}, steps=1000)
    assert [change["train.lr"] for change in on_grid.values() if "train.lr" in change] == [8.49e-4, 1.7e-3]
    between = module.common({"method": "lora", "train.lr": 8.49e-4}, steps=1000)
    assert not any("train.lr" in change for change in between.values())
    assert between["twice the steps"] == {"train.steps": 2000}

"""What is typed for `bara train` or `bp.train`: it is in the run's settings, or refused by its name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from app_cases import Bara, Place, assert_one_sentence
from command_cases import COMMANDS, options_of
from setting_cases import other_settings, value_at

import bara_pyro as bp
from bara_pyro.cli import running
from bara_pyro.cli.app import UsageError
from bara_pyro.cli.options import option_settings as options
from bara_pyro.errors import ConfigError
from bara_pyro.runs.assignments import setting_fields
from bara_pyro.runs.config import RunConfig, for_rows, steps_of
from bara_pyro.runs.system import build_system

ROWS = 300
# Said by the steps that they come to.
EPOCHS = "train.epochs"
Train = Callable[..., RunConfig | str]


@pytest.fixture
def typed(bara: Bara, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Train:
    """Return what gives the settings that a training would have with so many rows, or why it is refused."""
    seen: list[RunConfig] = []
    monkeypatch.setattr(running, "train_and_show", lambda out, config: seen.append(config))
    monkeypatch.chdir(tmp_path)

    def of(*words: str) -> RunConfig | str:
        seen.clear()
        folder = () if {"--resume", "--overwrite"} & {*words} else ("--out", str(tmp_path / "run"))
        result = bara("train", *folder, *words)
        if result.code:
            return result.err
        try:
            return for_rows(seen[0], ROWS)
        except ConfigError as error:
            return str(error)

    return of


def check(found: RunConfig | str, key: str, value: Any) -> bool:
    """Assert that a setting is there, or named by what refuses it; return whether it is there."""
    if isinstance(found, str):
        assert key.rpartition(".")[2] in found.replace("-", "_"), (key, found)
        return False
    if key == EPOCHS:
        assert found.train.steps == steps_of(value, ROWS, found.train.batch_size)
        return True
    assert str(value_at(found, key)) == str(value), (key, value)
    return True


def words_of(key: str, value: Any) -> list[str]:
    """Return the option of a setting with a value."""
    name = next(option.name for option in options() if option.key == key).replace("_", "-")
    if value is True or value is False:
        return [f"--{name}" if value else f"--no-{name}"]
    return [
        word for one in (value if isinstance(value, list) else [value]) for word in (f"--{name}", str(one))
    ]


@pytest.mark.parametrize("method", ["bara", "ivon"])
@pytest.mark.slow
def test_every_setting_is_kept_or_refused_by_its_name(method: str, typed: Train) -> None:
    values = other_settings(method)
    kept = 0
    for key, value in values.items():
        kept += check(typed("--method", method, "--set", f"{key}={json.dumps(value)}"), key, value)
    assert kept > 35


@pytest.mark.slow
def test_every_option_is_kept_or_refused_by_its_name(typed: Train) -> None:
    kept = sum(check(typed(*words_of(key, v)), key, v) for key, v in other_settings().items())
    assert kept > 35


@pytest.mark.slow
def test_options_win_over_a_file_also_where_they_are_defaults(typed: Train, tmp_path: Path) -> None:
    """And over what the method presets: IVON has another rate."""
    file = tmp_path / "settings.yaml"
    for key, value in other_settings().items():
        section, _, name = key.rpartition(".")
        default = setting_fields()[key].get_default(call_default_factory=True)
        file.write_text(yaml.safe_dump({section: {name: value}} if section else {name: value}))
        check(typed("--config", str(file)), key, value)
        assignment = f"{key}={json.dumps(default)}"
        found = typed("--method", "ivon", "--config", str(file), "--set", assignment)
        if key not in {EPOCHS, "train.steps", "adapter.calibrated", "train.may_double"}:  # null: by the rows
            check(found, key, default)
    assert not isinstance(config := typed("--method", "ivon", "--lr", "1e-3"), str)
    assert config.train.lr == 1e-3


def test_null_is_a_value_of_an_option(typed: Train, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("adapter: {target_modules: all-linear}\n")
    found = typed("--config", str(file), "--target-modules", "null")
    assert not isinstance(found, str)
    assert found.adapter.target_modules is None


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--lr", "0.1", "--set", "train.lr=0.2"), "train.lr"),
        (("--method", "bara", "--set", "method=lora"), "method"),
        (("--set", "train.lr=0.1", "--set", "train.lr=0.2"), "train.lr"),
        (("micro-wgs", "--task", "micro-arce"), "micro-arce"),
        (("--steps", "5", "--epochs", "2"), "--epochs"),
        (("--resume",), "--out"),
        (("--overwrite",), "--out"),
    ],
)
def test_contradictions_are_refused(words: tuple[str, ...], named: str, typed: Train) -> None:
    found = typed(*words)
    assert isinstance(found, str)
    assert named in found


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"lr": 0.1, "train.lr": 0.2}, "train.lr"),
        ({"backbone.name": "other"}, "model"),
        ({"task.name": "other"}, "task"),
        ({"method.name": "lora"}, "method"),
        ({"batch_size": None}, "train.batch_size"),
        ({"model": "BACKBONE", "device": "cuda"}, "device"),
        ({"model": "BACKBONE", "dtype": "bfloat16"}, "dtype"),
    ],
)
def test_contradictions_in_python_are_refused(settings: dict[str, Any], named: str, tmp_path: Path) -> None:
    if settings.get("model"):
        settings = {**settings, "model": bp.load_backbone("microworld")}
    with pytest.raises(ConfigError, match=named):
        bp.train(out=tmp_path / "run", **settings)


@pytest.mark.parametrize("method", ["lora", "blob", "bara", "clora"])
def test_a_rate_that_nothing_is_trained_at_is_refused(method: str, place: Place) -> None:
    latent = {"method__latent": "phi"} if method == "bara" else {}
    recipe = {"method__recipe": "reproduction"} if method == "clora" else {}
    with pytest.raises(ConfigError, match=r"local_lr_scale=0\.5 .* '" + method):
        build_system(place.config(method__name=method, train__local_lr_scale=0.5, **latent, **recipe))
    build_system(place.config(method="bara", train__local_lr_scale=0.5))


@pytest.mark.parametrize(
    "settings",
    [{}, {"task__validation_rows": 4}, {"task__name": "micro-wgs", "backbone__name": "microworld"}],
)
def test_a_seed_that_chooses_nothing_is_noted(settings: dict[str, object], place: Place) -> None:
    """It chooses validation rows, and generates the rows of the microworld."""
    notes = build_system(place.config(task__seed=3, task__limit=8, **settings)).task.notes
    assert any("--task-seed" in note for note in notes) is not bool(settings)


def test_options_that_nothing_reads_are_told_after_training(bara: Bara, place: Place, tmp_path: Path) -> None:
    words = ("train", place.rows, "--model", place.backbone, "--steps", 1, "--limit", 8, "--predict-seed", 1)
    lora, gates = (bara(*words, "--out", tmp_path / m, "--method", m) for m in ("lora", "bara-gate"))
    assert "--predict-seed changes nothing" in lora.out + lora.err
    assert "changes nothing" not in gates.out + gates.err


def test_an_empty_text_is_refused_by_the_name_that_the_help_shows(bara: Bara) -> None:
    assert_one_sentence(bara("predict", "run", " "), "'TEXT'")
    assert_one_sentence(bara("train", "rows.csv", "--model", ""), "'--model'")


def test_there_is_something_to_train_on(bara: Bara) -> None:
    assert_one_sentence(bara("train"), "bara train micro-wgs")


def test_what_changes_no_count_is_refused_by_params(bara: Bara) -> None:
    words = ("params", "--model", "microworld", "--set")
    assert_one_sentence(bara(*words, "train.lr=0.1"), "train.lr")
    assert bara(*words, "adapter.r=2").code == 0
    assert bara(*words, "method=lora").code == 0


def test_a_training_finds_a_free_folder_and_says_what_comes_next(
    bara: Bara, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("micro-wgs", "micro-wgs-2"):
        result = bara("train", "micro-wgs", "--method", "lora", "--steps", "1", "--limit", "8")
        assert result.code == 0, result.err
        assert f"Writing to runs/{name}\n" in result.out + result.err
        assert f"Next: bara predict runs/{name} " in result.out + result.err
        assert (tmp_path / "runs" / name / "metrics.json").exists()


@pytest.mark.parametrize(
    ("given", "meant"),
    [("--rank", "--r"), ("--learning-rate", "--lr"), ("--output-dir", "--out"), ("--dataset", "--task")],
)
def test_a_name_of_other_programs_is_told_ours(given: str, meant: str, bara: Bara) -> None:
    assert_one_sentence(bara("train", given, "3"), given, f"{meant} here")
    assert "here" not in bara("methods", given, "3").err  # which has no such option


@pytest.mark.parametrize("name", COMMANDS)
def test_two_values_are_refused(name: str) -> None:
    for option in options_of(name):
        word = option.opts[0]
        typed = [f"{word}=one", f"{word}=two"]
        if option.is_flag:
            typed = [word, *option.secondary_opts]
        if option.multiple or len(typed) == 1:
            continue
        with pytest.raises(UsageError) as refused:
            parse(name, *typed)
        for given in typed:
            assert given.replace("=", " ") in str(refused.value)


def parse(name: str, *words: str) -> Any:
    return COMMANDS[name].make_context(name, list(words))


def test_the_same_value_again_and_what_can_be_repeated() -> None:
    params = parse(
        "train", "--lr", "1", "--lr", "1", "-q", "--quiet", "--samples", "1", "--samples", "2"
    ).params
    assert (params["lr"], params["quiet"], params["samples"]) == (1.0, True, [1, 2])


def test_it_is_one_sentence(bara: Bara) -> None:
    assert_one_sentence(bara("train", "micro-wgs", "--lr", 1, "--lr", 2), "--lr 1 and --lr 2", "train --help")
    assert_one_sentence(bara("train", "--calibrated", "--no-calibrated"), "--calibrated and --no-calibrated")

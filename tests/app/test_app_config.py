"""The configuration: every field from the command line and from YAML, clear errors, a stable hash."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from setting_cases import at, other_settings

from bara_pyro.errors import ConfigError
from bara_pyro.runs import config as module
from bara_pyro.runs.assignments import parse_assignment
from bara_pyro.runs.config import RunConfig, load_config
from bara_pyro.runs.sections import TrainConfig
from bara_pyro.runs.stored import NEUTRAL, differences

# What goes with none of the answers' settings.
OF_REPLIES = ("task.likelihood", "task.packing")
# What a setting is refused without.
NEEDED = {
    "task.text_score": ["task.labels=texts"],
    "task.train_rows_seed": ["task.train_rows=8"],
    "task.likelihood": ["task.max_length=77"],  # which is then another by default
    "task.system": ["task.chat=true"],
    "task.packing": ["task.likelihood=completion"],
}


def others() -> dict[str, Any]:
    """Return another value than the default of every setting."""
    # Such that all go together, and none is another name of the default.
    together = {"task.labels": "texts", "task.train_rows": 8, "method.activation": "topk"}
    settings = other_settings("bara") | together
    del settings["adapter.start"]  # presets others: tests/app/test_from_adapter.py
    return settings


def assigned(key: str, value: Any) -> str:
    return f"{key}={json.dumps(value)}"


def test_every_field_from_the_command_line_and_from_yaml(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for key, value in others().items():
        needed = ["method=bara", *NEEDED.get(key, [])]
        default = load_config(assignments=needed)
        assert at(default.dump(), key) != value, key
        by_set = load_config(assignments=[*needed, assigned(key, value)])
        assert at(by_set.dump(), key) == value, key
        *section, name = key.split(".")
        path.write_text(yaml.safe_dump({section[0]: {name: value}} if section else {name: value}))
        by_yaml = load_config(path, assignments=needed)
        assert by_yaml == by_set, key
        assert by_yaml.hash == by_set.hash
        assert (by_set.hash == default.hash) == (key in NEUTRAL), key
        changed = differences(default, by_set)
        assert changed
        assert all(other == key or other.startswith(key + ".") for other in changed)


def test_all_fields_at_once_and_back_again() -> None:
    # With latent=phi there is no theta, and one_pass needs answers of one token.
    apart = (*OF_REPLIES, "train.epochs", "method.latent", "adapter.one_pass")
    given = {key: value for key, value in others().items() if key not in apart}
    config = load_config(assignments=["method=bara", *(assigned(*item) for item in given.items())])
    assert {key: at(config.dump(), key) for key in given} == given
    assert RunConfig.model_validate(config.dump()) == config


def test_order_of_precedence(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("train: {lr: 1e-2, steps: 5, batch_size: 8}\nmethod: bara-gate\n")
    config = load_config(path, {"train.steps": 6, "adapter.r": 4}, ["train.batch_size=10", "adapter.r=4"])
    assert (config.train.lr, config.train.steps, config.train.batch_size) == (0.01, 6, 10)
    assert config.adapter.r == 4
    assert config.method.name == "bara-gate"
    based = load_config(assignments=["seed=5"], base=config)
    assert differences(config, based) == ["seed"]


def test_null_is_a_value(tmp_path: Path) -> None:
    """Of an option as of an assignment, also where a file or the method presets another."""
    path = tmp_path / "run.yaml"
    path.write_text("train: {local_lr_scale: 0.5}\nadapter: {target_modules: all-linear}\n")
    given = {"train.local_lr_scale": None, "adapter.target_modules": None}
    config = load_config(path, given)
    assert (config.train.local_lr_scale, config.adapter.target_modules) == (None, None)
    based = load_config(path)
    assert based.adapter.target_modules == "all-linear"
    assert load_config(overrides=given, base=based) == config
    with pytest.raises(ConfigError, match=r"train\.batch_size = None"):
        load_config(overrides={"train.batch_size": None})


def test_a_given_rate_replaces_the_search_of_a_stored_configuration() -> None:
    base = load_config(overrides={"train.find_lr": True, "train.steps": 50})
    assert load_config(overrides={"seed": 1}, base=base).train.find_lr
    assert not load_config(overrides={"train.lr": 0.002}, base=base).train.find_lr
    both = {"train.lr": 0.002, "train.find_lr": True}
    assert load_config(overrides=both, base=base).train.find_lr


@pytest.mark.parametrize(
    ("given", "assignments"),
    [
        ({"train.lr": 0.1}, ["train.lr=0.2"]),
        ({"train.lr": 0.001}, ["train.lr=null"]),
        ({}, ["train.lr=0.1", "train.lr=0.2"]),
        ({"train.lr": 0.1}, ["train={lr: 0.2}"]),
        ({"method": "bara"}, ["method=lora"]),
        ({"method": "bara"}, ["method.name=lora"]),
        ({"method": "bara"}, ["method={name: lora}"]),
    ],
)
def test_a_setting_that_is_given_twice_is_refused(given: dict[str, Any], assignments: list[str]) -> None:
    key = next(iter(given), "train.lr")
    with pytest.raises(ConfigError, match=rf"{key} was given twice"):
        load_config(overrides=given, assignments=assignments)


def test_a_whole_section_leaves_what_was_given_beside_it() -> None:
    config = load_config(overrides={"train.steps": 5}, assignments=["train={lr: 0.2}", "train.warmup=0"])
    assert (config.train.steps, config.train.lr, config.train.warmup) == (5, 0.2, 0.0)


@pytest.mark.parametrize(
    ("assignment", "parts"),
    [
        ("train.larning_rate=1", ["'train.larning_rate'", "train.lr", "train.warmup"]),
        ("trian.lr=1", ["'trian'", "train", "backbone"]),
        ("method.gate=1", ["'method.gate'", "method.latent", "method.init_kappa"]),
        ("method=bora", ["'bora'", "adalora, bara, bara-gate, blob"]),
        ("method.name=[1]", ["[1]", "adalora, bara, bara-gate, blob"]),
        ("method.phi_prior=gama", ["'gama'", "gamma"]),
        ("method.phi_prior.rat=2", ["rat", "rate"]),
        ("method.guide=normal", ["guide", "'normal'", "weibull"]),
        ("train.lr=-1", ["train.lr", "-1", "greater than 0"]),
        ("train.lr=.inf", ["train.lr", "finite"]),
        ("train.lr=.nan", ["train.lr", "nan"]),
        ("train.lr=fast", ["train.lr", "'fast'", "number"]),
        ("train.accumulate=3", ["accumulate=3", "batch_size=4"]),
        ("backbone.dtype=float8", ["backbone.dtype", "'float8'", "bfloat16"]),
        ("task.test_fraction=1", ["task.test_fraction", "less than 1"]),
        ("train.steps", ["key=value"]),
        ("train.steps=[1", ["YAML"]),
        ("train={lr: 1, lr: 2}", ["'lr' is given twice"]),
        ("seed.a=1", ["seed"]),
        ("adapter.calibrated=yess", ["adapter.calibrated", "'yess'", "true or false"]),
        ("task.classes=[yes, no]", ["task.classes", "True", "quotation marks"]),
        ("adapter.r=abc", ["adapter.r", "'abc'", "a whole number"]),
    ],
)
def test_a_wrong_setting_is_one_sentence_with_the_known_ones(assignment: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(assignments=[assignment])
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    for part in parts:
        assert part in message, message


def test_a_key_that_replaces_a_merged_one_is_not_given_twice() -> None:
    """PyYAML reads the outer mapping that merges the inner one first, and writes the keys into the inner."""
    text = "x={a: {b: &b {<<: {lr: 1}, lr: 2}}, c: {<<: *b, lr: 3}}"
    assert parse_assignment(text) == ("x", {"a": {"b": {"lr": 2}}, "c": {"lr": 3}})


@pytest.mark.parametrize("text", ["- 1\n", "a: [\n", "just words\n", "seed: 1\nseed: 2\n", "seed: !!map 1\n"])
def test_a_file_that_is_no_configuration(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        load_config(path)
    with pytest.raises(ConfigError, match=r"absent\.yaml \(No such file or directory\)"):
        load_config(tmp_path / "absent.yaml")


def test_numbers_in_scientific_notation_are_numbers() -> None:
    config = load_config(assignments=["train.lr=1e-3", "method.phi_prior.rate=2e0", "train.steps=10"])
    assert config.train.lr == 1e-3
    assert config.dump()["method"]["phi_prior"]["rate"] == 2.0


def test_the_hash_is_the_same_in_another_order_and_process() -> None:
    one = load_config(assignments=["seed=1", "train.lr=0.5"])
    two = load_config(assignments=["train.lr=0.5", "seed=1"])
    assert one.hash == two.hash
    assert len(one.hash) == 12
    assert load_config(overrides={"seed": 1}).hash == "0128f288795e"


def test_a_changed_default_changes_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a default has changed, raise `DEFAULTS` and write defaults.json anew."""
    stored = json.loads((Path(__file__).parent / "defaults.json").read_text())
    constants = {name: stored.pop(name) for name in ("DEFAULTS", "DEFAULT_LR")}
    assert constants == {name: getattr(module, name) for name in constants}
    for method, settings in stored.items():
        current = RunConfig(method=method).model_dump(mode="json")
        for key, value in settings.items():
            section, _, name = key.rpartition(".")
            assert (current[section] if section else current)[name] == value, (method, key)
    before = load_config().hash
    monkeypatch.setattr(module, "DEFAULTS", module.DEFAULTS + 1)
    assert load_config().hash != before


class NewerTrainConfig(TrainConfig):
    colour: str | None = None


class Newer(RunConfig):
    train: NewerTrainConfig = NewerTrainConfig()


def test_a_setting_that_is_added_later_changes_no_hash_until_it_is_used() -> None:
    assert Newer().hash == RunConfig().hash != Newer(train={"colour": "red"}).hash


def test_labels_chosen_by_themselves_have_the_hash_of_words() -> None:
    """Where words can be asked for, the two are the same run."""
    styles = ("auto", "words", "letters")
    auto, words, letters = (load_config(overrides={"task.labels": style}).hash for style in styles)
    assert auto == words == load_config().hash != letters


def test_the_default_rate_and_no_rate_have_one_hash() -> None:
    rates = (None, 1e-3, 2e-3)
    none, default, other = (load_config(overrides={"train.lr": lr}).hash for lr in rates)
    assert none == default == load_config().hash != other


def test_steps_replayed_with_equal_results_have_the_hash_of_eager_ones() -> None:
    off, auto, on = (
        load_config(assignments=[f"train.capture={word}"]).hash for word in ("off", "auto", "on")
    )
    assert off == auto == load_config().hash != on

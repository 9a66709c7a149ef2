"""The typed configuration of a run: every number that a result depends on, in one checked object."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from bara_pyro.errors import ConfigError
from bara_pyro.methods import METHODS, MethodConfig, method_config
from bara_pyro.methods.base import validation_sentence
from bara_pyro.settings import later


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values cannot be changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class BackboneConfig(Section):
    """Which frozen language model."""

    name: str = Field("microworld", description="'microworld', a local Hugging Face folder, or a hub name")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="type of the frozen weights"
    )
    device: str = Field("cpu", description="'cpu', 'cuda', 'cuda:1', 'mps'")


class TaskConfig(Section):
    """Which data."""

    name: str = Field(
        "micro-wgs",
        description="a known task (see `bara tasks`) or a local .csv, .tsv, .jsonl, .json or .parquet file",
    )
    data_dir: Path | None = Field(
        None, description="local folder <data_dir>/<task>/<split>.jsonl, instead of the hub"
    )
    revision: str | None = Field(None, description="commit or tag of the hub dataset")
    test_file: Path | None = Field(None, description="for a file of one's own: the rows to test on")
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="for a file of one's own without test_file: share of its rows to test on"
    )
    text_column: str | None = later(None, "for a file of one's own: column of the text or question")
    label_column: str | None = later(None, "for a file of one's own: column of the answer")
    choices_column: str | None = later(None, "for a file of one's own: column of the options of each row")
    context_column: str | None = later(
        None, "for a file of one's own: column of a text put before the question"
    )
    classes: list[str] | None = Field(
        None, description="for a file of one's own without choices: the labels in class order"
    )
    max_length: PositiveInt = Field(300, description="tokens; longer contexts are shortened, questions never")
    too_long: Literal["error", "drop"] = Field(
        "error", description="what to do with a row whose question alone is longer than max_length"
    )
    labels: Literal["auto", "words", "letters"] = Field(
        "auto",
        description="what the model answers with: 'words', the labels themselves; 'letters', A, B, .. for "
        "labels that are several tokens; 'auto': words where they are single tokens, else letters",
    )
    validation_rows: NonNegativeInt = Field(0, description="rows set aside from train for choosing settings")
    evaluate_on: Literal["test", "validation"] = Field(
        "test", description="the split that metrics are computed on"
    )
    limit: PositiveInt | None = Field(None, description="use at most so many rows of each split, to try out")
    seed: NonNegativeInt = Field(0, description="of the split and of the microworld's rows")


class AdapterConfig(Section):
    """Where and how large the adapters are; PEFT's names."""

    r: PositiveInt = Field(8, description="rank")
    lora_alpha: PositiveFloat = Field(16.0, description="the change is scaled by lora_alpha / r")
    target_modules: str | list[str] | None = Field(
        None,
        description="names, a regular expression, 'all-linear', or null: query, value and output projection",
    )
    full_vocab: bool = Field(False, description="compute the whole vocabulary's logits (same probabilities)")


class TrainConfig(Section):
    """How the negative ELBO is minimised: AdamW, linear warm-up and decay."""

    steps: PositiveInt = Field(3000, description="optimiser steps")
    batch_size: PositiveInt = Field(4, description="rows a step")
    accumulate: PositiveInt = Field(1, description="micro-batches that a step is cut into")
    lr: PositiveFloat = Field(1e-3, description="peak learning rate")
    local_lr_scale: PositiveFloat | None = Field(
        None, description="rate of an amortised guide as a share of lr; null: 0.1 for gates, else 1"
    )
    warmup: float = Field(0.06, ge=0, le=1, description="share of the steps")
    weight_decay: NonNegativeFloat = Field(0.0, description="decoupled (AdamW)")
    clip_norm: PositiveFloat | None = Field(None, description="joint gradient norm, loss in nats per example")
    autocast: Literal["bfloat16", "float16"] | None = Field(
        None, description="autocast of the backbone's products"
    )
    sampled_kl: bool = Field(False, description="allow a one-draw KL where no analytic one is registered")
    checkpoint_every: PositiveInt = Field(200, description="steps between checkpoints")
    log_every: PositiveInt = Field(10, description="steps between lines of train_log.jsonl")

    @model_validator(mode="after")
    def _divides(self) -> "TrainConfig":
        if self.batch_size % self.accumulate:
            raise ValueError(f"accumulate={self.accumulate} must divide batch_size={self.batch_size}")
        return self


class PredictConfig(Section):
    """How predictions are drawn."""

    samples: list[NonNegativeInt] = Field(
        [0, 10], description="numbers S of posterior draws; 0: posterior mean"
    )
    batch_size: PositiveInt = Field(64, description="rows a forward, before repetition by S")
    memory_budget: PositiveInt | None = Field(
        None, description="bytes of activations a forward, roughly; by default what suits the device"
    )
    seed: NonNegativeInt = Field(0, description="of the draws")


class RunConfig(Section):
    """Everything a run depends on."""

    method: SerializeAsAny[MethodConfig] = Field(default_factory=lambda: method_config({"name": "bara"}))
    backbone: BackboneConfig = BackboneConfig()
    task: TaskConfig = TaskConfig()
    adapter: AdapterConfig = AdapterConfig()
    train: TrainConfig = TrainConfig()
    predict: PredictConfig = PredictConfig()
    seed: NonNegativeInt = Field(0, description="of initial values, data order and noise")

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, data: Any) -> Any:
        """Give the section `train` what the method presets there and nobody set."""
        train = data.get("train", {}) if isinstance(data, dict) else None
        if not isinstance(train, dict) or not isinstance(data.get("method"), dict | str):
            return data
        return {**data, "train": {**METHODS[method_config(data["method"]).name].train, **train}}

    @field_validator("method", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return method_config(value) if isinstance(value, dict | str) else value

    def dump(self) -> dict[str, Any]:
        """Return the configuration as plain JSON values."""
        return self.model_dump(mode="json")

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits that identify the configuration.

        Labels chosen by themselves ("auto") count as "words": where the words are single tokens the two are
        the same run, and where they are not, there is no run with words.
        """
        data = self.dump()
        if data["task"]["labels"] == "auto":
            data["task"]["labels"] = "words"
        text = json.dumps(data, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def load_config(
    path: Path | None = None,
    overrides: dict[str, Any] | None = None,
    assignments: list[str] | None = None,
    base: RunConfig | None = None,
) -> RunConfig:
    """Build a configuration: base, a YAML or JSON file, overrides, `key=value` assignments, in that order.

    Args:
        path: YAML (or JSON) file with any subset of the fields.
        overrides: dotted key -> value; None values are left out.
        assignments: `"train.lr=0.001"`, values in YAML syntax.
        base: what the others change; the defaults if None.

    Raises:
        ConfigError: unreadable file, unknown key, or a value of the wrong type or out of range.
    """
    data: dict[str, Any] = {} if base is None else base.dump()
    if path is not None:
        _merge(data, _read_yaml(path))
    for key, value in (overrides or {}).items():
        if value is not None:
            set_key(data, key, value)
    for text in assignments or []:
        set_key(data, *parse_assignment(text))
    return parse_config(data)


def parse_config(data: dict[str, Any]) -> RunConfig:
    """Validate a plain dictionary; see `load_config`."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(validation_sentence(error, RunConfig)) from error


class _Loader(yaml.SafeLoader):
    """YAML 1.1, but 1e-3 is a number, as in YAML 1.2 and everywhere else."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"Cannot read the configuration {path}: {reason}.") from error
    if not isinstance(data, dict):
        raise ConfigError(f"The configuration {path} must hold key: value pairs.")
    return data


def parse_assignment(text: str) -> tuple[str, Any]:
    """Return the dotted key and the value of `"train.lr=0.001"`, the value in YAML syntax.

    Raises:
        ConfigError: there is no `=`, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text!r}: write key=value, for example --set train.lr=0.001.")
    try:
        return key.strip(), yaml.load(value, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text!r}: the value is not valid YAML.") from error


def _merge(data: dict[str, Any], changes: dict[str, Any]) -> None:
    """Put nested changes into nested data, in place."""
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            _merge(data[key], value)
        else:
            data[key] = value


def set_key(data: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested dictionaries, in place."""
    *parents, last = key.split(".")
    for parent in parents:
        if isinstance(data.get(parent), str):
            data[parent] = {"name": data[parent]}  # `method: bara` is short for `method: {name: bara}`
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise ConfigError(f"--set {key}: {parent!r} is a value, not a section.")
    if isinstance(data.get(last), dict) and isinstance(value, str):
        data[last]["name"] = value
    else:
        data[last] = value


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """Return the dotted keys whose values differ."""
    a, b = _flat(old.dump()), _flat(new.dump())
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in data.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out

"""The typed configuration of a run: every number that a result depends on, in one checked object."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, SerializeAsAny, ValidationError, ValidationInfo, field_validator, model_validator

from bara_pyro.errors import ConfigError
from bara_pyro.methods import METHODS, MethodConfig, method_config
from bara_pyro.methods.base import STORED
from bara_pyro.retired import with_retired
from bara_pyro.runs.assignments import collect
from bara_pyro.runs.sections import RunSettings
from bara_pyro.settings import DEFAULT_METHOD, validation_sentence
from bara_pyro.types import Json

LENGTH = ("steps", "epochs")  # of the section `train`: one of them says how long
# What is a matter of the machine, with the same result: a run that somebody sent says nothing about this one.
OF_THE_MACHINE = (("backbone", "states_folder"),)
# With them, how rows are kept and what is no setting any more: the run is the same.
WITHOUT_EFFECT = (*OF_THE_MACHINE, ("task", "streaming"), ("train", "process_timeout"))

# What costs memory and time alone: a run that ran out of it goes on with others (figures agree to rounding).
MEMORY = (("train", "checkpointing"), ("predict", "memory_budget"), ("predict", "batch_size"))


class RunConfig(RunSettings):
    """Everything a run depends on."""

    method: SerializeAsAny[MethodConfig] = Field(default_factory=lambda: method_config(DEFAULT_METHOD))

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, data: Any, info: ValidationInfo) -> Any:
        """Give the section `train` what the method presets there and nobody set."""
        train = data.get("train", {}) if isinstance(data, dict) else None
        if not isinstance(train, dict) or not isinstance(data.get("method"), dict | str):
            return data
        method = cls._by_name(data["method"], info)
        return {**data, "method": method, "train": {**METHODS[method.name].train, **train}}

    @field_validator("method", mode="before")
    @classmethod
    def _by_name(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict | str):
            return value
        return method_config(value, stored=info.context == STORED)

    def dump(self) -> Json:
        """Return the configuration as plain JSON values."""
        return self.model_dump(mode="json")

    def effective(self) -> Json:
        """Return `dump` without what changes no result."""
        return _with_effect(self.dump())

    def portable(self) -> "RunConfig":
        """Return the configuration with the defaults of what is a matter of the machine it was made on."""
        sections = {}
        for section, key in OF_THE_MACHINE:
            part = getattr(self, section)
            sections[section] = part.model_copy(update={key: type(part).model_fields[key].default})
        return self.model_copy(update=sections)

    def memory(self) -> dict[str, Any]:
        """Return the settings that are a matter of memory alone, by dotted key."""
        return {f"{section}.{key}": getattr(getattr(self, section), key) for section, key in MEMORY}

    def with_memory(self, values: Mapping[str, Any] | None = None) -> "RunConfig":
        """Return the configuration with other settings of what costs memory alone, or the defaults of it."""
        sections = {name: getattr(self, name) for name, _ in MEMORY}
        for section, key in MEMORY:
            default = type(sections[section]).model_fields[key].default
            value = default if values is None else values[f"{section}.{key}"]
            sections[section] = sections[section].model_copy(update={key: value})
        return self.model_copy(update=sections)

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits that identify the configuration.

        Labels chosen by themselves ("auto") count as "words": where the words are single tokens the two are
        the same run, and where they are not, there is no run with words. What changes no result is left out,
        what is a matter of memory alone counts as its default.
        """
        data = _with_effect(with_retired(self.with_memory().dump()))
        if data["task"]["labels"] == "auto":
            data["task"]["labels"] = "words"
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]


def _with_effect(data: Json) -> Json:
    """Return a dumped configuration without what changes no result."""
    for section, key in WITHOUT_EFFECT:
        data[section].pop(key, None)
    return data


def load_config(
    path: str | Path | None = None,
    overrides: Json | None = None,
    assignments: list[str] | None = None,
    base: RunConfig | None = None,
) -> RunConfig:
    """Build a configuration: base, a YAML or JSON file, then overrides and `key=value` assignments.

    Args:
        path: YAML (or JSON) file with any subset of the fields.
        overrides: dotted key -> value; None is a value, of a setting that may be null.
        assignments: `"train.lr=0.001"`, values in YAML syntax.
        base: what the others change; the defaults if None.

    Raises:
        ConfigError: unreadable file, unknown key, a value of the wrong type or out of range, or a setting
            that overrides and assignments set to two values.

    Examples:
        >>> from bara_pyro.runs.config import load_config
        >>> config = load_config(overrides={"method": "bara-gate"}, assignments=["train.lr=1e-4"])
        >>> config.train.lr, config.method.form
        (0.0001, 'gate')
        >>> len(config.hash)  # identifies it
        12
    """
    file = None if path is None else Path(path)
    if base is None:
        return parse_config(collect(file, overrides, assignments))
    given, data = collect(file, overrides, assignments), base.dump()
    train = given.get("train")
    if isinstance(train, dict) and any(train.get(key) is not None for key in LENGTH):
        data["train"] |= dict.fromkeys(LENGTH)  # of the base: what is given stands in its place
    # What nothing reads is let stand in a base that has it, and refused where it is given.
    return parse_config(collect(file, overrides, assignments, data), stored="method" not in given)


def parse_config(data: Json, *, stored: bool = False) -> RunConfig:
    """Validate a plain dictionary, maybe of a stored run; see `load_config` and `method_config`."""
    try:
        return RunConfig.model_validate(data, context=STORED if stored else None)
    except ValidationError as error:
        raise ConfigError(validation_sentence(error, RunConfig)) from error


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """Return the dotted keys whose values differ."""
    a, b = _flat(old.dump()), _flat(new.dump())
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


def _flat(data: Json, prefix: str = "") -> Json:
    out: Json = {}
    for key, value in data.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out

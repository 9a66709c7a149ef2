"""Merge settings from YAML files, short names and `key=value` into nested dictionaries, and check each."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from bara_pyro.errors import ConfigError, unknown
from bara_pyro.runs.sections import RunSettings
from bara_pyro.settings import validation_sentence
from bara_pyro.types import Fields, Json
from bara_pyro.untrusted.files import why


def collect(
    path: Path | None,
    overrides: Fields | None,
    assignments: Sequence[str] | None,
    base: Json | None = None,
) -> Json:
    """Return nested settings; see `bara_pyro.runs.config.load_config`. Changes `base` in place."""
    data = {} if base is None else base
    if path is not None:
        _merge(data, _read_yaml(path))
    typed = dict(overrides or {})
    for key, value in assigned(assignments or []).items():
        if key in typed and typed[key] != value:
            raise ConfigError(
                f"{key} was given twice, as {typed[key]!r} and by --set as {value!r}: leave one out."
            )
        typed[key] = value
    for key, value in typed.items():
        set_key(data, key, value)
    return data


def assigned(assignments: Sequence[str]) -> Json:
    """Return a dictionary of dotted keys from several `key=value`; a section is split into its settings.

    Raises:
        ConfigError: one is not `key=value`, or a key has two values.
    """
    settings: Json = {}
    for text in assignments:
        key, value = parse_assignment(text)
        section = isinstance(value, dict) and "." not in key
        parts = {f"{key}.{k}": v for k, v in value.items()} if section else {key: value}
        for inner, one in parts.items():
            # `method` and `method.name` are the same setting.
            name = "method" if inner == "method.name" and isinstance(one, str) else inner
            if name in settings and settings[name] != one:
                raise ConfigError(
                    f"--set {name} was given twice, as {settings[name]!r} and {one!r}: leave one out."
                )
            settings[name] = one
    return settings


class _Loader(yaml.SafeLoader):
    """YAML 1.1, except that 1e-3 is a number, as in YAML 1.2, and that a key may not occur twice."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return a mapping as it is written; of two equal keys PyYAML would take the last."""
        node = super().compose_mapping_node(anchor)
        seen: list[object] = []
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r} is given twice", problem_mark=key.start_mark
                )
            seen.append(key.value)
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


def _read_yaml(path: Path) -> Json:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"Cannot read the configuration {path} ({_reason(error)}).") from error
    if not isinstance(data, dict):
        raise ConfigError(f"The configuration {path} must consist of `key: value` pairs.")
    return data


def parse_assignment(text: str) -> tuple[str, Any]:
    """Split `"train.lr=0.001"` into its dotted key and its value in YAML syntax, or raise a `ConfigError`."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text!r}: write key=value, for example --set train.lr=0.001.")
    try:
        return key.strip(), yaml.load(value, _Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"--set {text!r}: the value is not valid YAML ({_reason(error)}).") from error


def _reason(error: Exception) -> str:
    """Return in one line why YAML cannot be read."""
    return " ".join(why(error).split()).replace(' in "<unicode string>"', "")


def _merge(data: Json, changes: Json) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            _merge(data[key], value)
        else:
            data[key] = value


def set_key(data: Json, key: str, value: object) -> None:
    """Set a dotted key in nested dictionaries, in place."""
    *parents, last = key.split(".")
    for parent in parents:
        if isinstance(data.get(parent), str):
            data[parent] = {"name": data[parent]}  # `method: bara` is short for `method: {name: bara}`
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise ConfigError(f"There is no setting {key!r}: {parent!r} is a value, not a section.")
    if isinstance(data.get(last), dict) and isinstance(value, str):
        data[last]["name"] = value
    else:
        data[last] = value


# Settings whose short name is not their field's name.
NAMES = {"backbone.name": "model", "task.name": "task", "adapter.start": "from_adapter"}
# If several sections have a field of one name (`seed`, `batch_size`), the first of these has it unprefixed.
FIRST = ("", "train")


def setting_fields() -> dict[str, FieldInfo]:
    """Return every setting of a run except its method's: dotted key -> field, section by section."""
    fields: dict[str, FieldInfo] = {}
    for name, field in RunSettings.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            fields |= {f"{name}.{key}": inner for key, inner in model.model_fields.items()}
        else:
            fields[name] = field
    return fields


def setting_names() -> dict[str, str]:
    """Return a dictionary of short names and dotted keys."""
    names: dict[str, str] = {}
    for key in sorted(setting_fields(), key=lambda key: key.rpartition(".")[0] not in FIRST):
        section, _, last = key.rpartition(".")
        name = NAMES.get(key, last)
        names[f"{section}_{name}" if name in names else name] = key
    return names


def by_key(given: Mapping[str, object]) -> Json:
    """Return settings given by short names or dotted keys under their dotted keys.

    Raises:
        ConfigError: a name is unknown, or a setting was given twice.
    """
    names = setting_names()
    values: Json = {}
    for name, value in given.items():
        if name not in names and "." not in name:
            raise ConfigError(unknown("setting", name, names))
        key = names.get(name, name)
        if key in values:
            raise ConfigError(f"{key} was given twice, as {values[key]!r} and {value!r}: leave one out.")
        values[key] = value
    return values


def check_settings(data: Json) -> None:
    """Check each nested setting by itself, before anything slow is imported.

    An unknown key or an impossible value raises a `ConfigError`. `bara_pyro.runs.config.parse_config` later
    checks the method's settings and rules between settings.
    """
    try:
        RunSettings.model_validate({key: value for key, value in data.items() if key != "method"})
    except ValidationError as error:
        first = error.errors()[0]
        between = first["type"] == "value_error" and len(first["loc"]) == 1  # has the place of its section
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            known = ("method", *RunSettings.model_fields)
            raise ConfigError(unknown("setting", first["loc"][0], known)) from error
        if not between:
            raise ConfigError(validation_sentence(error, RunSettings)) from error

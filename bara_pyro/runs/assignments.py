"""Settings from YAML files and from `key=value`, put into nested dictionaries."""

import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from bara_pyro.errors import ConfigError
from bara_pyro.types import Fields, Json


def collect(
    path: Path | None,
    overrides: Fields | None,
    assignments: Sequence[str] | None,
    base: Json | None = None,
) -> Json:
    """Return nested settings: see `bara_pyro.runs.config.load_config`; `base` is changed in place."""
    data = {} if base is None else base
    if path is not None:
        _merge(data, _read_yaml(path))
    for key, value in (overrides or {}).items():
        if value is not None:
            set_key(data, key, value)
    for text in assignments or []:
        set_key(data, *parse_assignment(text))
    return data


class _Loader(yaml.SafeLoader):
    """YAML 1.1, but 1e-3 is a number, as in YAML 1.2 and everywhere else."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


def _read_yaml(path: Path) -> Json:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"Cannot read the configuration {path}: {reason}.") from error
    if not isinstance(data, dict):
        raise ConfigError(f"The configuration {path} must hold key: value pairs.")
    return data


def parse_assignment(text: str) -> tuple[str, object]:
    """Return the dotted key and the value of `"train.lr=0.001"`, the value in YAML syntax.

    Raises:
        ConfigError: there is no `=`, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text!r}: write key=value, for example --set train.lr=0.001.")
    try:
        return key.strip(), yaml.load(value, _Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"--set {text!r}: the value is not valid YAML.") from error


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

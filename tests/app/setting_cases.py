"""Values that somebody could type for each setting: valid ones that are not the default's."""

from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from bara_pyro.errors import ConfigError
from bara_pyro.methods import METHODS
from bara_pyro.runs.assignments import setting_fields

NUMBERS = (2, 7, 0.25, 0.5, 1.5)


def candidates(annotation: Any, default: Any) -> Iterator[Any]:
    """Yield values of a field's type."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from candidates(get_args(annotation)[0], default)
    elif origin in (Union, UnionType):
        for kind in get_args(annotation):
            yield from candidates(kind, default)
    elif origin is Literal:
        yield from get_args(annotation)
    elif origin is list:
        yield from ([value] for value in candidates(get_args(annotation)[0], None))
    elif annotation is bool:
        yield from (True, False)
    elif annotation in (int, float):
        yield from map(annotation, NUMBERS)
    elif annotation in (str, Path):
        yield from ("other", "lognormal")
    elif annotation is dict or origin is dict:
        yield {"name": "gamma", "concentration": 3.0, "rate": 2.0}


def other_value(model: type[BaseModel], key: str, field: FieldInfo, **fixed: Any) -> Any:
    """Return a value of a field that is not its default and that its section takes by itself, if any does."""
    default = field.get_default(call_default_factory=True)
    found = [value for value in candidates(field.annotation, default) if value not in (default, None)]
    for value in found:
        try:
            model.model_validate({**fixed, key: value})
        except (ValidationError, ConfigError):
            continue
        return value
    assert found, f"no value is known for {key}: {field.annotation}"
    return found[0]  # it needs another setting, and is refused without


def other_settings(method: str | None = None) -> dict[str, Any]:
    """Return a value for every setting of a run, and for those of a method: dotted key -> value."""
    from bara_pyro.runs.sections import RunSettings

    values = {}
    for key, field in setting_fields().items():
        section, _, name = key.rpartition(".")
        model = RunSettings.model_fields[section].annotation if section else RunSettings
        assert isinstance(model, type)
        values[key] = other_value(model, name, field)
    if method is not None:
        config = METHODS[method].config
        for name, field in config.model_fields.items():
            if name != "name":
                values[f"method.{name}"] = other_value(config, name, field, name=method)
    return values


def value_at(config: Any, key: str) -> Any:
    """Return what a configuration has at a dotted key."""
    for part in key.split("."):
        config = getattr(config, part)
    return config


def at(dumped: Any, key: str) -> Any:
    """Return what stands at a dotted key of a dumped configuration; what is left out has its default."""
    for part in key.split("."):
        dumped = dumped.get(part)
    return dumped

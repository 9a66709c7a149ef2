"""What a method is, and the registry of methods."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bara_pyro.backbone import Backbone
from bara_pyro.errors import ConfigError, unknown
from bara_pyro.guide import SiteGuide
from bara_pyro.program import AdaptedLM


class MethodConfig(BaseModel):
    """Settings of a method; subclasses add theirs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="the method")


Builder = Callable[[Backbone, int, dict[str, Any], Any], tuple[AdaptedLM, SiteGuide]]


@dataclass(frozen=True)
class Method:
    """A named pair of program and guide.

    Attributes:
        name: what `--method` takes.
        summary: one line for `bara methods`.
        config: the class of its settings.
        build: `(backbone, num_data, adapter settings, method settings) -> (model, guide)`.
        defaults: settings that this name presets.
    """

    name: str
    summary: str
    config: type[MethodConfig]
    build: Builder
    defaults: dict[str, Any] = field(default_factory=dict)


METHODS: dict[str, Method] = {}


def register_method(method: Method) -> Method:
    """Add a method to the registry; a name can be taken once.

    Raises:
        ConfigError: the name is taken.
    """
    if method.name in METHODS:
        raise ConfigError(f"The method name {method.name!r} is already registered.")
    METHODS[method.name] = method
    return method


def method_config(value: dict[str, Any] | str) -> MethodConfig:
    """Return the checked settings of the method that `value["name"]` names.

    Raises:
        ConfigError: unknown method, setting or value.
    """
    data = {"name": value} if isinstance(value, str) else dict(value)
    name = data.get("name", "bara")
    if name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS))
    method = METHODS[name]
    try:
        return method.config.model_validate({**method.defaults, **data, "name": name})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise ConfigError(
                unknown(f"setting of method {name}", key, method.config.model_fields)
            ) from error
        raise ConfigError(
            f"Setting method.{key} = {first['input']!r} is not valid: {first['msg']}."
        ) from error


def build(
    config: MethodConfig, backbone: Backbone, num_data: int, adapter: dict[str, Any]
) -> tuple[AdaptedLM, SiteGuide]:
    """Make the model and the guide of a method.

    Args:
        config: from `method_config`.
        backbone: the frozen language model.
        num_data: number of training examples.
        adapter: `r`, `lora_alpha`, `target_modules`, `full_vocab`.
    """
    return METHODS[config.name].build(backbone, num_data, adapter, config)

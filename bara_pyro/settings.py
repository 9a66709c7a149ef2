"""Helpers for settings classes: settings without effect, and error messages."""

from collections.abc import Container
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from bara_pyro.errors import BaraError, unknown

DEFAULT_METHOD = "bara-gate"  # see docs/decisions.md, record 4

# Replacements for pydantic's messages.
FIXES = {
    "bool": "give true or false",
    "int": "give a whole number",
    "float": "give a number",
    "string": "give a text, in quotation marks, as YAML reads yes, no, on, off and 1 otherwise",
}


@dataclass(frozen=True)
class Unread:
    """Marks a setting that has no effect while another setting has one of some values.

    A configuration that then sets it to anything but its default is refused, so that no setting is ignored.

    Attributes:
        setting: name of the other setting.
        values: values of the other setting.

    Examples:
        >>> from typing import Annotated
        >>> from bara_pyro.methods import MethodConfig
        >>> from bara_pyro.settings import Unread
        >>> class MineConfig(MethodConfig):
        ...     recipe: str = "elbo"
        ...     kl_lr: Annotated[float, Unread("recipe", ("elbo",))] = 0.01
        >>> MineConfig(name="mine", recipe="published", kl_lr=0.3).kl_lr
        0.3
    """

    setting: str
    values: Container[object]


def validation_sentence(error: ValidationError, model: type[BaseModel], prefix: tuple[str, ...] = ()) -> str:
    """Return pydantic's first error as one sentence; for an unknown key it lists the known ones.

    Args:
        error: pydantic's error.
        model: the validated class.
        prefix: key of the section, for the message.
    """
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, BaraError):  # raised by one of our validators
        return str(cause)
    key = ".".join(map(str, (*prefix, *first["loc"])))
    if first["type"] == "extra_forbidden":
        return unknown("setting", key, _known_fields(model, first["loc"][:-1], prefix))
    fix = FIXES.get(first["type"].removesuffix("_parsing").removesuffix("_type"))
    message = fix or first["msg"].removeprefix("Value error, ").rstrip(".")
    where = f"Setting {key} = {first['input']!r}" if key else "The configuration"
    return f"{where} is not valid: {message[0].lower()}{message[1:]}."


def _known_fields(model: type[BaseModel], path: tuple[int | str, ...], prefix: tuple[str, ...]) -> list[str]:
    """Return the valid dotted keys at the place of an unknown one."""
    for part in path:
        annotation = model.model_fields[str(part)].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return [".".join(map(str, (*prefix, *path, name))) for name in model.model_fields]

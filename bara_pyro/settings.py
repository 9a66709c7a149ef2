"""What classes of settings share: fields added later or switched off by others, and sentences of errors."""

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from bara_pyro.errors import BaraError, unknown

T = TypeVar("T")

DEFAULT_METHOD = "bara-gate"  # where nobody names one: docs/decisions.md, record 4

# What is wanted in the words of a user, where pydantic says what it tried.
FIXES = {"bool": "give true or false", "int": "give a whole number", "float": "give a number"}


def later(default: T, description: str, **limits: Any) -> T:
    """Return a field that was added after results had been stored under a configuration's hash.

    While it has its default it is left out of what is dumped, and so of the hash: a configuration that does
    not use it keeps the name that its stored results have. For the same reason its default, once released,
    must never change. Use it for every new field of a section or of a method's settings:

        text_column: str | None = later(None, "column of the text")

    Args:
        default: the value with which everything is as before.
        description: what it does, for help and errors.
        limits: further arguments of `pydantic.Field`, such as `gt=0`.
    """
    field: T = Field(default, description=description, exclude_if=lambda value: value == default, **limits)
    return field


@dataclass(frozen=True)
class Unread:
    """Marks a setting of a method that nothing reads while another one has one of some values.

    A configuration in which it is not its default then is refused: what somebody gives is never ignored.

    Attributes:
        setting: the other one.
        values: its values, or types of them.

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
    values: tuple[object, ...]

    def applies(self, value: object) -> bool:
        """Return whether the other setting has such a value."""
        return any(isinstance(value, one) if isinstance(one, type) else value == one for one in self.values)


def validation_sentence(error: ValidationError, model: type[BaseModel], prefix: tuple[str, ...] = ()) -> str:
    """Return the first mistake that pydantic found as one sentence; an unknown key comes with the known ones.

    Args:
        error: what pydantic raised.
        model: the class that was validated.
        prefix: the key of the section that it is, for the user to find it.
    """
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, BaraError):  # raised by a validator of ours: says it all
        return str(cause)
    key = ".".join(map(str, (*prefix, *first["loc"])))
    if first["type"] == "extra_forbidden":
        return unknown("setting", key, _known_fields(model, first["loc"][:-1], prefix))
    fix = FIXES.get(first["type"].removesuffix("_parsing").removesuffix("_type"))
    message = fix or first["msg"].removeprefix("Value error, ").rstrip(".")
    where = f"Setting {key} = {first['input']!r}" if key else "The configuration"
    return f"{where} is not valid: {message[0].lower()}{message[1:]}."


def _known_fields(model: type[BaseModel], path: tuple[int | str, ...], prefix: tuple[str, ...]) -> list[str]:
    """Return the dotted keys beside an unknown one."""
    for part in path:
        annotation = model.model_fields[str(part)].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return [".".join(map(str, (*prefix, *path, name))) for name in model.model_fields]

"""Make an option from each field of the settings, with its description and its default."""

import inspect
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from bara_pyro.cli.wrap import Command, with_parameters
from bara_pyro.runs.assignments import parse_assignment, setting_fields, setting_names

# Listed first, among the command's own options; the others follow, a panel per section.
COMMON = (
    *("backbone.name", "backbone.device", "task.name", "train.steps", "train.batch_size", "train.lr"),
    *("predict.samples", "seed"),
)
PANELS = {
    "task": "Data",
    "backbone": "Language model",
    "adapter": "Adapters",
    "train": "Training",
    "predict": "Prediction",
}


@dataclass(frozen=True)
class Setting:
    """A field of the settings as an option.

    The dotted key is `train.batch_size`, and the name `batch_size` for `--batch-size`.
    """

    key: str
    name: str
    field: FieldInfo

    @property
    def section(self) -> str:
        """The section of the settings; "" for a setting of the whole run."""
        return self.key.rpartition(".")[0]

    @property
    def panel(self) -> str | None:
        """The panel of the help; None for the command's own."""
        if self.key in COMMON:
            return None
        return PANELS.get(self.section, self.section.capitalize() or None)

    @property
    def help(self) -> str:
        """The description, the known values and the default, with what a description says of `null`."""
        text, _, unset = (self.field.description or "").partition("; null: ")
        default = unset or self.field.default
        if isinstance(default, list):
            default = " and ".join(map(str, default))
        choices = [f"'{one}'" for one in _choices(self.field.annotation)]
        known = f" ({', '.join(choices)})" if choices and not all(one in text for one in choices) else ""
        stated = f" (default: {default})" if default is not None and not isinstance(default, bool) else ""
        return f"{text[:1].upper()}{text[1:].rstrip('.')}{known}.{stated}"

    def parameter(self) -> Parameter:
        """Return the function parameter that typer makes the option from."""
        metavar = "YAML" if _is_yaml(self.field.annotation) else None
        option = typer.Option(help=self.help, metavar=metavar, rich_help_panel=self.panel)
        annotation = Annotated[_kind(self.field.annotation) | None, option]  # type: ignore[valid-type]
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    def value(self, given: object) -> object:
        """Return the value of the field for what was typed."""
        if isinstance(given, str) and _is_yaml(self.field.annotation):
            return parse_assignment(f"{self.key}={given}")[1]
        return given


def option_settings() -> list[Setting]:
    """Return every setting of a run except those of its method, in the order of the help."""
    fields = setting_fields()
    settings = [Setting(key, name, fields[key]) for name, key in setting_names().items()]
    order = [*COMMON, *(key for key in fields if key not in COMMON)]
    panels = [None, *PANELS.values()]
    rank = {panel: place for place, panel in enumerate(panels)}
    return sorted(settings, key=lambda s: (rank.get(s.panel, len(panels)), order.index(s.key)))


def takes_settings(command: Command) -> Command:
    """Give a command an option for each setting; `given` receives those typed, dotted key to value."""
    known = {setting.name: setting for setting in option_settings()}
    parameters = inspect.signature(command, eval_str=True).parameters

    @wraps(command)
    def wrapped(**arguments: object) -> None:
        read = {name: arguments.pop(name) for name in known}
        values = {known[k].key: known[k].value(v) for k, v in read.items() if v is not None and v != []}
        command(**arguments, given=values)

    return with_parameters(
        wrapped,
        [
            *(parameter for name, parameter in parameters.items() if name != "given"),
            *(setting.parameter() for setting in known.values()),
        ],
    )


def _members(annotation: object) -> list[object]:
    """Return the types that a field may have, without None and without limits."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for one in get_args(annotation) if one is not NoneType for kind in _members(one)]
    return [annotation]


def _choices(annotation: object) -> tuple[object, ...]:
    kinds = _members(annotation)
    return get_args(kinds[0]) if get_origin(kinds[0]) is Literal else ()


def _is_yaml(annotation: object) -> bool:
    """Return whether a field has several types, which YAML distinguishes."""
    return len(_members(annotation)) > 1


def _kind(annotation: object) -> Any:
    """Return the type for typer: text for types it cannot read, which the settings check later."""
    if _is_yaml(annotation):
        return str
    kind = _members(annotation)[0]
    if get_origin(kind) is list:
        return list[_kind(get_args(kind)[0])]  # type: ignore[misc]
    return kind if kind in (int, float, bool, str) else str

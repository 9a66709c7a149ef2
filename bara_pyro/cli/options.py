"""The options of commands: those that several share, and those made from the settings."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from bara_pyro.cli.wrap import PANEL, Command, in_place_of
from bara_pyro.columns import KINDS, column_names
from bara_pyro.runs.assignments import parse_assignment, setting_fields, setting_names
from bara_pyro.runs.remote import is_address
from bara_pyro.runs.sections import MOST_DRAWS, MOST_SEED
from bara_pyro.types import Json

DATA, MODEL = "Data", "Language model"
of_data, of_model = (partial(typer.Option, rich_help_panel=panel) for panel in (DATA, MODEL))


def path(value: str | Path) -> Path:
    """Return a path; refuse an empty name, and a name that no file can have.

    An empty name would mean the current folder, and is what an unset variable of a script expands to.
    """
    text = str(value)
    if not text.strip():
        raise typer.BadParameter("it is empty")
    try:
        text.encode()  # a name that is not UTF-8 can be neither printed nor stored with the settings
        os.lstat(text)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, ValueError) as error:
        why = "it is not UTF-8" if isinstance(error, UnicodeError) else getattr(error, "strerror", error)
        raise typer.BadParameter(f"{text[:80]!a} is not a valid file name ({why})") from error
    return Path(value)


Run = Annotated[Path, typer.Argument(metavar="RUN", parser=path, help="Folder of a finished run.")]
RunOrServer = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        parser=lambda given: given if is_address(given) else str(path(given)),
        help="Folder of a finished run, or the address of `bara serve`, which answers faster.",
    ),
]
OutFolder = Annotated[Path, typer.Option(metavar="FOLDER", parser=path, help="Folder to write.")]
Model = Annotated[
    str | None,
    typer.Option(help="'microworld', a local Hugging Face folder, or a hub name. (default: microworld)"),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or mps. (default: cpu)")]
TaskName = Annotated[
    str | None, of_data(help="A task (`bara tasks` lists them), or your own file. (default: micro-wgs)")
]
SampleCount = Annotated[
    int, typer.Option(min=0, max=MOST_DRAWS, help="Posterior draws S; 0: the posterior mean.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace earlier output of bara.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        help="Also show the parameter count and the percentages of gates that are off.",
        rich_help_panel=PANEL,
    ),
]
Moved = Annotated[
    str | None, of_model("--model", help="Where the run's language model is now, if it has moved.")
]
RunDevice = Annotated[str | None, of_model("--device", help="cpu, cuda, cuda:1 or mps. (default: the run's)")]
OtherTask = Annotated[
    str | None,
    of_data(
        "--task",
        help="Other rows to score: a file, all of whose rows are test rows, or a task of `bara tasks`. "
        "(default: the run's)",
    ),
]
DataDir = Annotated[
    Path | None, of_data(parser=path, help="Folder with <task>/<split>.jsonl, to read instead of the hub.")
]
TestFile = Annotated[Path | None, of_data(parser=path, help="The same as --task, for a file.")]
Limit = Annotated[int | None, of_data(min=1, help="Use at most this many rows of each split, for a trial.")]
Samples = Annotated[
    list[int] | None,
    typer.Option(
        min=0,
        max=MOST_DRAWS,
        help="Posterior draws S; 0: the posterior mean. Can be repeated. (default: the run's)",
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed of the draws.")]
SAMPLING = "Sampling"
of_sampling = partial(typer.Option, rich_help_panel=SAMPLING)
Draws = Annotated[
    str,
    typer.Option(
        help="each: one posterior draw per reply; a number: draws to share; mean: the posterior mean."
    ),
]
Temperature = Annotated[
    float, of_sampling(min=0, help="Temperature of the token distribution; 0: the likeliest token.")
]
TopP = Annotated[float, of_sampling(help="Draw from the likeliest tokens of this total probability.")]
TopK = Annotated[int, of_sampling(min=0, help="Draw from this many likeliest tokens; 0: all.")]
MaxNewTokens = Annotated[
    int | None,
    of_sampling(min=1, help="Most tokens of a reply. (default: 256, or half of a context shorter than 512)"),
]
MemoryBudget = Annotated[
    int | None,
    of_sampling(min=1, help="Approximate bytes of a batch. (default: 256 MiB on a CPU, else 4 GiB)"),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting, for example method.guide=gamma. Can be repeated."
    ),
]


def draws_of(given: str) -> int | str:
    """Return what --draws means: a number, or a word."""
    return int(given) if given.isdecimal() else given


def takes_columns(*kinds: str) -> Callable[[Command], Command]:
    """Return a decorator that adds an option for each kind of column; `columns` receives the names."""
    return in_place_of("columns", {f"{kind}_column": _column(kind) for kind in kinds}, column_names)


def _column(kind: str) -> Parameter:
    option = of_data(help=f"Column of {KINDS[kind].help}.")
    return Parameter(
        f"{kind}_column", Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )


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

    def typed(read: Json) -> Json:
        return {known[k].key: known[k].value(v) for k, v in read.items() if v is not None and v != []}

    options = {name: setting.parameter() for name, setting in known.items()}
    return in_place_of("given", options, typed)(command)


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

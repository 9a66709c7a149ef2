"""The options that several commands share; `generated` makes those of `train` from the settings."""

import inspect
import os
from collections.abc import Callable
from functools import partial, wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from bara_pyro.cli.wrap import PANEL, Command, with_parameters
from bara_pyro.columns import KINDS, column_names
from bara_pyro.runs.remote import is_address
from bara_pyro.runs.sections import MOST_DRAWS, MOST_SEED

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
    options = {f"{kind}_column": _column(kind) for kind in kinds}

    def taking(command: Command) -> Command:
        @wraps(command)
        def wrapped(**arguments: Any) -> None:
            named = {option: arguments.pop(option) for option in options}
            command(**arguments, columns=column_names(named))

        parameters: list[Parameter] = []
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
            parameters += options.values() if name == "columns" else [parameter]
        return with_parameters(wrapped, parameters)

    return taking


def _column(kind: str) -> Parameter:
    option = of_data(help=f"Column of {KINDS[kind].help}.")
    return Parameter(
        f"{kind}_column", Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )

"""Options that several commands share; those of `train` are made from the settings, see `generated`."""

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
from bara_pyro.runs.sections import MOST_DRAWS, MOST_SEED

DATA, MODEL = "Data", "Language model"
of_data, of_model = (partial(typer.Option, rich_help_panel=panel) for panel in (DATA, MODEL))


def path(value: str | Path) -> Path:
    """Return a path; refuse a name that no file can have, and an empty one, which would mean the folder here.

    A script's unset variable is empty.
    """
    text = str(value)
    if not text.strip():
        raise typer.BadParameter("it is empty")
    try:
        text.encode()  # what is no UTF-8 could be neither shown nor kept in a file of settings
        os.lstat(text)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, ValueError) as error:
        why = "it is not UTF-8" if isinstance(error, UnicodeError) else getattr(error, "strerror", error)
        raise typer.BadParameter(f"no file can be named {text[:80]!a} ({why})") from error
    return Path(value)


Run = Annotated[Path, typer.Argument(metavar="RUN", parser=path, help="Folder of a finished run.")]
OutFolder = Annotated[Path, typer.Option(metavar="FOLDER", parser=path, help="Folder to write.")]
Model = Annotated[
    str | None,
    typer.Option(help="'microworld', a local Hugging Face folder, or a hub name. (default: microworld)"),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or mps. (default: cpu)")]
TaskName = Annotated[
    str | None, of_data(help="A task (`bara tasks` lists them), or a file of your own. (default: micro-wgs)")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what bara wrote there before.")]
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
RunDevice = Annotated[
    str | None, of_model("--device", help="cpu, cuda, cuda:1 or mps; the run's own by default.")
]
OtherTask = Annotated[
    str | None, of_data("--task", help="Another task or file, for shifted data; the run's own by default.")
]
DataDir = Annotated[
    Path | None, of_data(parser=path, help="Folder that holds <task>/<split>.jsonl, read instead of the hub.")
]
TestFile = Annotated[
    Path | None, of_data(parser=path, help="Rows to test on, for a task that is your own file.")
]
Limit = Annotated[int | None, of_data(min=1, help="Use at most so many rows of each split, to try out.")]
Samples = Annotated[
    list[int] | None,
    typer.Option(
        min=0,
        max=MOST_DRAWS,
        help="Posterior draws S, 0 for the posterior mean; can be repeated. (default: the run's own)",
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed of the draws.")]
SAMPLING = "Sampling"
of_sampling = partial(typer.Option, rich_help_panel=SAMPLING)
Draws = Annotated[
    str,
    typer.Option(help="each: a draw of the posterior for every reply; a number of draws to share; mean."),
]
Temperature = Annotated[float, of_sampling(min=0, help="Of the tokens' distribution; 0: the likeliest.")]
TopP = Annotated[float, of_sampling(help="Keep the likeliest tokens of this probability.")]
TopK = Annotated[int, of_sampling(min=0, help="Keep so many tokens; 0: all.")]
MaxNewTokens = Annotated[
    int | None,
    of_sampling(min=1, help="Where a reply is cut. (default: 256, or half of a context of less than 512)"),
]
MemoryBudget = Annotated[
    int | None,
    of_sampling(min=1, help="Bytes of a batch, roughly; by default 256 MiB on a CPU, else 4 GiB."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting, for example method.guide=gamma; can be repeated."
    ),
]


def draws_of(given: str) -> int | str:
    """Return what --draws means: a number, or a word."""
    return int(given) if given.isdecimal() else given


def takes_columns(*kinds: str) -> Callable[[Command], Command]:
    """Give a command an option for each of these kinds of columns; it receives their names as `columns`."""
    options = {f"{kind}_column": _column(kind) for kind in kinds}

    def taking(command: Command) -> Command:
        @wraps(command)
        def wrapped(**arguments: Any) -> None:
            named = {option: arguments.pop(option) for option in options}
            command(**arguments, columns=column_names(named))

        parameters: list[Parameter] = []
        for name, own in inspect.signature(command, eval_str=True).parameters.items():
            parameters += options.values() if name == "columns" else [own]
        return with_parameters(wrapped, parameters)

    return taking


def _column(kind: str) -> Parameter:
    option = of_data(help=f"Column of {KINDS[kind].help}.")
    return Parameter(
        f"{kind}_column", Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )

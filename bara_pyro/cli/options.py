"""Options that several commands share; those of `train` are made from the settings, see `generated`."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.runs.sections import MOST_DRAWS, MOST_SEED

DATA, MODEL = "Data", "Language model"


def path(value: str | Path) -> Path:
    """Return a path; refuse an empty one (a script's unset variable), which would mean the folder here."""
    if not str(value).strip():
        raise typer.BadParameter("it is empty")
    return Path(value)


Run = Annotated[Path, typer.Argument(metavar="RUN", parser=path, help="Folder of a finished run.")]
OutFolder = Annotated[Path, typer.Option(metavar="FOLDER", parser=path, help="Folder to write.")]
Model = Annotated[
    str | None,
    typer.Option(help="'microworld', a local Hugging Face folder, or a hub name. (default: microworld)"),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or mps. (default: cpu)")]
TaskName = Annotated[
    str | None,
    typer.Option(
        help="A task (`bara tasks` lists them), or a file of your own. (default: micro-wgs)",
        rich_help_panel=DATA,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what bara wrote there before.")]
Moved = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Where the run's language model is now, if it has moved.",
        rich_help_panel=MODEL,
    ),
]
RunDevice = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="cpu, cuda, cuda:1 or mps; the run's own by default.",
        rich_help_panel=MODEL,
    ),
]
OtherTask = Annotated[
    str | None,
    typer.Option(
        "--task",
        help="Another task or file, for shifted data; the run's own by default.",
        rich_help_panel=DATA,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        parser=path,
        help="Folder that holds <task>/<split>.jsonl, read instead of the hub.",
        rich_help_panel=DATA,
    ),
]
TestFile = Annotated[
    Path | None,
    typer.Option(
        parser=path,
        help="Rows to test on, for a task that is your own file.",
        rich_help_panel=DATA,
    ),
]
TextColumn = Annotated[
    str | None, typer.Option(help="Column of the text or question, in a file.", rich_help_panel=DATA)
]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the answer.", rich_help_panel=DATA)]
ChoicesColumn = Annotated[
    str | None, typer.Option(help="Column of each row's options.", rich_help_panel=DATA)
]
ContextColumn = Annotated[
    str | None, typer.Option(help="Column of a text put before the question.", rich_help_panel=DATA)
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Use at most so many rows of each split, to try out.", rich_help_panel=DATA),
]
Samples = Annotated[
    list[int] | None,
    typer.Option(
        min=0,
        max=MOST_DRAWS,
        help="Posterior draws S, 0 for the posterior mean; can be repeated. (default: the run's own)",
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed of the draws.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting, for example method.form=gate; can be repeated."
    ),
]

"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DATA, MODEL = "Data", "Model"

Method = Annotated[
    str | None, typer.Option(help="What to train: see `bara methods`. (default: bara)", rich_help_panel=MODEL)
]
Model = Annotated[
    str | None,
    typer.Option(
        help="'microworld', a local Hugging Face folder, or a hub name. (default: microworld)",
        rich_help_panel=MODEL,
    ),
]
Moved = Annotated[
    str | None,
    typer.Option(
        "--model", help="Where the run's language model is now, if it has moved.", rich_help_panel=MODEL
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 or mps. (default: cpu)", rich_help_panel=MODEL)
]
RunDevice = Annotated[
    str | None,
    typer.Option(
        "--device", help="cpu, cuda, cuda:1 or mps; the run's own by default.", rich_help_panel=MODEL
    ),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        help="A task (`bara tasks` lists them), or a .jsonl, .json or .csv file of your own. "
        "(default: micro-wgs)",
        rich_help_panel=DATA,
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
        help="Folder that holds <task>/<split>.jsonl, read instead of the hub.", rich_help_panel=DATA
    ),
]
TestFile = Annotated[
    Path | None, typer.Option(help="Rows to test on, for a task that is your own file.", rich_help_panel=DATA)
]
TestFraction = Annotated[
    float | None,
    typer.Option(
        help="Share of your own file to test on, where there is no --test-file. (default: 0.2)",
        rich_help_panel=DATA,
    ),
]
ValidationRows = Annotated[
    int | None,
    typer.Option(help="Training rows set aside to choose settings on. (default: 0)", rich_help_panel=DATA),
]
Labels = Annotated[
    str | None,
    typer.Option(
        help="'words': the model answers with the label itself; 'letters': with A, B, .. for labels that are "
        "several tokens. (default: words)",
        rich_help_panel=DATA,
    ),
]
TooLong = Annotated[
    str | None,
    typer.Option(
        help="'error' or 'drop': what to do with a row whose question alone is too long. (default: error)",
        rich_help_panel=DATA,
    ),
]
Revision = Annotated[
    str | None, typer.Option(help="Commit or tag of the hub's dataset.", rich_help_panel=DATA)
]
Limit = Annotated[
    int | None,
    typer.Option(help="Use at most so many rows of each split, to try out.", rich_help_panel=DATA),
]
Samples = Annotated[
    list[int] | None,
    typer.Option(help="Posterior draws S, 0 for the posterior mean; can be repeated. (default: 0 and 10)"),
]
Config = Annotated[Path | None, typer.Option(help="YAML file with any of the settings.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, for example method.form=gate."),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]

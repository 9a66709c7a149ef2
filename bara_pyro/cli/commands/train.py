"""`bara train`: fine-tune a model on a task."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.generated import takes_settings
from bara_pyro.cli.options import Overwrite, Set, path
from bara_pyro.cli.wrap import TRAIN, listed
from bara_pyro.settings import DEFAULT_METHOD
from bara_pyro.types import Json

FILES = "Settings in files"
Method = Annotated[
    str | None, typer.Option(help=f"What to train: see `bara methods`. (default: {DEFAULT_METHOD})")
]
Config = Annotated[
    Path | None, typer.Option(parser=path, help="YAML file with any of the settings.", rich_help_panel=FILES)
]
Rows = Annotated[
    str | None,
    typer.Argument(
        metavar="[TASK]", help="A file of your own, or a task; as --task.", show_default=False, parser=str
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        parser=path,
        help="Folder to write. (default: runs/NAME of the task, with a number behind it where that is taken)",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with the run in --out, with its own settings. Where its language model or its rows are "
        "now can be given again, if they have moved.",
    ),
]


@listed(
    TRAIN,
    *("model", "method", "out", "text_column", "label_column", "validation_rows", "steps", "lr", "seed"),
    *("config", "overwrite", "device"),
)
@takes_settings
def train(
    given: Json,
    rows: Rows = None,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    method: Method = None,
    config: Config = None,
    assignments: Set = None,
) -> None:
    """Fine-tune a model on a task, then evaluate it on the test rows; writes one folder.

    Settings of the method itself are given with --set, for example --set method.guide=gamma.

    With several GPUs or machines: torchrun --nproc-per-node 4 -m bara_pyro train ..., or accelerate launch -m
    bara_pyro train ...; the processes share the rows of each step.
    """
    from bara_pyro.cli import terminal
    from bara_pyro.cli.catalogue import check_method
    from bara_pyro.cli.outputs import check_folder, check_writable, free_folder
    from bara_pyro.errors import ConfigError
    from bara_pyro.runs.assignments import collect
    from bara_pyro.runs.launched import processes, rank
    from bara_pyro.runs.manifest import REHEARSAL, is_run, trained_files, verify_files
    from bara_pyro.runs.sections import check_settings

    if rank():  # one of several processes: the first shows and writes what there is
        terminal.mode.quiet, terminal.mode.json = True, False
    # What can be wrong is looked for before anything slow is imported.
    if method is not None:
        given = {"method": method, **given}
    if rows is not None:
        if given.get("task.name", rows) != rows:
            raise ConfigError(f"{rows} and --task {given['task.name']} are two tasks: give one of them.")
        given = {**given, "task.name": rows}
    settings = collect(config, given, assignments or [])
    check_settings(settings)
    check_method(settings.get("method"))
    if out is None:
        if resume or overwrite or processes() > 1:
            needs = "--resume" if resume else "--overwrite" if overwrite else "training in several processes"
            raise ConfigError(f"{needs} needs --out, the folder of the run.")
        name = settings.get("task", {}).get("name")
        if not name:
            raise ConfigError(
                "Give what to train on: a file of your own or a task (`bara tasks`), such as "
                "bara train micro-wgs."
            )
        out = free_folder(name)
        terminal.say(f"Writing to {out}")
    if resume:
        if overwrite:
            raise ConfigError("--resume goes on with a run and --overwrite starts it anew: give one of them.")
        verify_files(out, trained_files(out))
        if not is_run(out):
            raise ConfigError(f"There is no run in {out}: leave out --resume to start one there.")
        check_writable(out)
    elif not rank():
        check_folder(out, overwrite=overwrite, resumes=True, parts=(REHEARSAL,))

    from bara_pyro.cli.running import train_and_show
    from bara_pyro.runs.config import parse_config
    from bara_pyro.runs.resumed import resumed

    if resume:
        started, now = resumed(out, config, given, assignments or [])
        train_and_show(out, now, started=started)
    else:
        train_and_show(out, parse_config(settings))

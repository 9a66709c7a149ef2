"""`bara train`: fine-tune a language model on a task or a file."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import Overwrite, Set, Verbose, path, takes_settings
from bara_pyro.cli.wrap import TRAIN, listed
from bara_pyro.settings import DEFAULT_METHOD
from bara_pyro.types import Json

FILES = "Settings in files"
Method = Annotated[
    str | None, typer.Option(help=f"Training method; `bara methods` lists them. (default: {DEFAULT_METHOD})")
]
Config = Annotated[
    Path | None, typer.Option(parser=path, help="YAML file of settings.", rich_help_panel=FILES)
]
Rows = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE",
        help="Your rows (.csv, .tsv, .jsonl, .json or .parquet), or a task of `bara tasks`.",
        show_default=False,
        parser=str,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        parser=path,
        help="Folder to write. (default: runs/NAME of the file or task, numbered if that exists)",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Resume the run in --out with its own settings. You may give its language model or rows again "
        "if they have moved.",
    ),
]


@listed(
    TRAIN,
    *("model", "method", "out", "text_column", "label_column", "validation_rows", "steps", "lr", "seed"),
    *("config", "overwrite", "device"),
)
@takes_settings
def train(
    rows: Rows = None,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    verbose: Verbose = False,
    method: Method = None,
    config: Config = None,
    assignments: Set = None,
    *,
    given: Json,
) -> None:
    """Fine-tune a model on a file or a task, and evaluate it on held-out rows.

    The run is one folder, which all other commands read. Give settings of the method with --set, for example
    --set method.guide=gamma.

    On several GPUs or machines: torchrun --nproc-per-node 4 -m bara_pyro train ... or accelerate launch -m
    bara_pyro train ... The processes share the rows of each step.
    """
    from bara_pyro.cli import terminal
    from bara_pyro.cli.catalogue import check_method
    from bara_pyro.cli.checks import check_folder, check_writable, free_folder, show_every_column
    from bara_pyro.errors import ConfigError
    from bara_pyro.runs.assignments import check_settings, collect
    from bara_pyro.runs.launched import processes, rank
    from bara_pyro.runs.manifest import SPLIT_HALF_FOLDER, TRAINED, is_run, verify_files

    if rank():  # of several processes only the first shows and writes results
        terminal.mode.quiet, terminal.mode.json = True, False
    show_every_column(verbose)
    # Mistakes are looked for before anything slow is imported.
    if method is not None:
        given = {"method": method, **given}
    if rows is not None:
        if given.get("task.name", rows) != rows:
            raise ConfigError(f"{rows} and --task {given['task.name']} differ: give one of them.")
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
                "There is nothing to train on: give a file, or a task of `bara tasks`, such as "
                "bara train micro-wgs."
            )
        out = free_folder(name)
        terminal.say(f"Writing to {out}")
    if resume:
        if overwrite:
            raise ConfigError("--resume continues a run and --overwrite starts it again: give one of them.")
        verify_files(out, TRAINED)
        if not is_run(out):
            raise ConfigError(f"There is no run in {out}: leave out --resume to start one there.")
        check_writable(out)
    elif not rank():
        check_folder(out, overwrite=overwrite, resumes=True, parts=(SPLIT_HALF_FOLDER,))

    from bara_pyro.cli.running import train_and_show
    from bara_pyro.runs.config import parse_config
    from bara_pyro.runs.stored import resumed

    if resume:
        started, now = resumed(out, config, given, assignments or [])
        train_and_show(out, now, started=started)
    else:
        train_and_show(out, parse_config(settings))

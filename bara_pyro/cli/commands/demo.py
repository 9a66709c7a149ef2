"""`bara demo`: three methods on a small task, on one page."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import DataDir, Device, Model, Overwrite, TaskName, path
from bara_pyro.runs.sections import MOST_SEED


def demo(
    out: Annotated[Path, typer.Option(parser=path, help="Folder for runs, pictures and index.html.")] = Path(
        "runs/demo"
    ),
    overwrite: Overwrite = False,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed.")] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Optimiser steps of each method. (default: 1500)")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Take few steps and rows: shows that everything works, not how well."),
    ] = False,
    model: Model = None,
    device: Device = None,
    task: TaskName = None,
    data_dir: DataDir = None,
) -> None:
    """Fine-tune LoRA and BaRA on a small task, and show on one page how far to trust each.

    Takes a few minutes and needs no download. An interrupted demonstration continues, and a finished one is
    shown again; --overwrite starts it again.
    """
    from bara_pyro.cli import demo as program
    from bara_pyro.cli.demo_page import METHODS
    from bara_pyro.cli.outputs import check_folder

    # A finished demonstration is read back; an interrupted one continues.
    check_folder(out, overwrite=True, parts=METHODS)
    settings = {
        "backbone.name": model,
        "backbone.device": device,
        "task.name": task,
        "task.data_dir": data_dir,
        "task.seed": seed,
        "seed": seed,
        "train.steps": steps,
    }
    program.demo(out, settings, overwrite=overwrite, quick=quick)

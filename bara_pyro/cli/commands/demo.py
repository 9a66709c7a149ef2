"""`bara demo`: three methods on a small task, on one page."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import DataDir, Device, Model, TaskName


def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs, pictures and index.html.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps of each method.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few steps and rows: shows that everything works, not how well.")
    ] = False,
    model: Model = None,
    device: Device = None,
    task: TaskName = None,
    data_dir: DataDir = None,
) -> None:
    """Fine-tune LoRA and both forms of BaRA on a small task and compare how far each can be trusted."""
    from bara_pyro.cli import demo as program

    program.demo(
        out, seed=seed, steps=steps, quick=quick, model=model, device=device, task=task, data_dir=data_dir
    )

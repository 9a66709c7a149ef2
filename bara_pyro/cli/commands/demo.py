"""`bara demo` and `bara microworld`: three methods on the small world that ships, and how to rebuild it."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import DataDir, Device, Model, OutFolder, Overwrite, TaskName, path
from bara_pyro.cli.wrap import add_command, group
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
    from bara_pyro.cli.checks import check_folder
    from bara_pyro.cli.demo import METHODS

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


microworld = group("Rebuild the small world that ships with the package.")


def build(
    out: OutFolder,
    overwrite: Overwrite = False,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed of the pretraining.")] = 0,
    world: Annotated[
        int,
        typer.Option(min=0, max=MOST_SEED, help="Seed of the world; 0 is the shipped one."),
    ] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Pretraining steps. (default: as shipped)")] = None,
    hidden_size: Annotated[
        int | None, typer.Option(min=32, help="Width, a multiple of 32. (default: 128, as shipped)")
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Depth. (default: 4, as shipped)")] = None,
) -> None:
    """Pretrain the small world's language model from scratch (up to 20 minutes on two cores)."""
    from bara_pyro.cli.checks import check_folder
    from bara_pyro.errors import ConfigError
    from bara_pyro.runs.ownership import adding, clear

    if hidden_size is not None and hidden_size % 32:
        raise ConfigError(f"--hidden-size {hidden_size} is not a multiple of 32: give one, such as 128.")
    check_folder(out, overwrite=overwrite)

    from bara_pyro.cli.terminal import progress, result, say, say_next
    from bara_pyro.microworld.build import STEPS
    from bara_pyro.microworld.build import build_backbone as pretrain

    clear(out)
    with adding(out) as place, progress("pretrain the microworld's backbone", steps or STEPS) as advance:
        sizes = {"hidden_size": hidden_size, "layers": layers}
        report = pretrain(
            place,
            seed,
            steps,
            lambda step, _, loss: advance(completed=step, note=f"loss {loss:.3f}"),
            world=world,
            **{name: size for name, size in sizes.items() if size is not None},
        )
    say(
        f"{report.parameters:,} parameters, loss {report.final_loss:.3f} nats per token over the last "
        f"tenth of {report.steps} steps, {report.megabytes:.1f} MB written to {out}"
    )
    result({**vars(report), "out": out})
    say_next("bara", "train", "micro-wgs", "--model", out, *(["--world", world] if world else []))


add_command(microworld, build)

"""`bara microworld`: rebuild the small world that ships with the package."""

from typing import Annotated

import typer

from bara_pyro.cli.options import OutFolder, Overwrite
from bara_pyro.cli.wrap import add_command, group
from bara_pyro.runs.sections import MOST_SEED

app = group("Rebuild the small world that ships with the package.")


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
    from bara_pyro.cli.outputs import check_folder
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


add_command(app, build)

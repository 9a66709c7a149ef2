"""`bara microworld`: rebuild and measure the small world that ships with the package."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import OutFolder, Overwrite, path
from bara_pyro.cli.wrap import add_command, group
from bara_pyro.runs.sections import MOST_SEED

CARD_STEPS = 3000  # training steps of each run that the card reports

app = group("Rebuild and measure the small world that ships with the package.")


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
    card_file: Annotated[
        Path | None,
        typer.Option("--card", parser=path, help="Also measure every task and write this file."),
    ] = None,
) -> None:
    """Pretrain the small world's language model from scratch (up to 20 minutes on two cores)."""
    from bara_pyro.cli.outputs import check_file, check_folder
    from bara_pyro.errors import ConfigError
    from bara_pyro.runs.answers_file import world_card_in
    from bara_pyro.runs.ownership import adding, clear

    if hidden_size is not None and hidden_size % 32:
        raise ConfigError(f"--hidden-size {hidden_size} is not a multiple of 32: give one, such as 128.")
    check_folder(out, overwrite=overwrite)
    if card_file is not None:
        check_file(card_file, overwrite=overwrite, option="--card", ours=world_card_in)

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
    if card_file is None:
        say_next("bara", "train", "micro-wgs", "--model", out, *(["--world", world] if world else []))
    else:
        card(
            card_file,
            overwrite=overwrite,
            model=str(out),
            runs=out.parent / "card-runs",
            seeds=3,
            world=world,
        )


def card(
    out: Annotated[Path, typer.Option(parser=path, help="Markdown file to write.")] = Path(
        "docs/microworld.md"
    ),
    overwrite: Overwrite = False,
    model: Annotated[
        str, typer.Option(help="'microworld' (as shipped) or the folder of a rebuilt one.")
    ] = "microworld",
    runs: Annotated[Path, typer.Option(parser=path, help="Folder for the card's runs.")] = Path("runs/card"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds of LoRA.")] = 3,
    world: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed of the model's world.")] = 0,
) -> None:
    """Measure every task before training, by LoRA and by the truth, and write the card.

    An interrupted card continues where it stopped.
    """
    from bara_pyro.cli.outputs import check_file
    from bara_pyro.runs.answers_file import world_card_in

    check_file(out, overwrite=overwrite, ours=world_card_in)

    from bara_pyro.cli.card import measure, write_card
    from bara_pyro.cli.running import run
    from bara_pyro.cli.terminal import say, shell_word
    from bara_pyro.lm.loading import load_backbone
    from bara_pyro.runs.config import load_config
    from bara_pyro.runs.system import build_system

    backbone = load_backbone(model)

    def lora(task: str, seed: int) -> dict[str, float]:
        settings = {"method": "lora", "backbone.name": model, "task.name": task, "seed": seed}
        settings["train.steps"] = CARD_STEPS
        config = load_config(overrides={**settings, "task.world": world, "predict.samples": [0]})
        system = build_system(config, backbone)
        return run(config, runs / f"{task}-{seed}", resume=True, system=system)["metrics"]["0"]

    c = load_config().train
    recipe = (
        f"It trains for {CARD_STEPS:,} steps of {c.batch_size} rows at a learning rate of {c.peak_lr:g} "
        "with r = 8; only the number of steps differs from its defaults."
    )
    write_card(out, measure(backbone, lora, seeds, world), recipe)
    say(f"Written to {out}")
    say(f"Next: read {shell_word(out)}")


for command in (build, card):
    add_command(app, command)

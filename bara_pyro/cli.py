"""`bara`: train, evaluate and predict from the command line."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bara_pyro.errors import BaraError

app = typer.Typer(
    help="Fine-tune language models with calibrated uncertainty: BaRA and its rivals as Pyro programs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
micro = typer.Typer(help="The embedded small world: its backbone and its card.", no_args_is_help=True)
app.add_typer(micro, name="microworld")

Method = Annotated[str | None, typer.Option(help="Method; `bara methods` lists them.")]
Model = Annotated[str | None, typer.Option(help="'microworld', a local Hugging Face folder, or a hub name.")]
TaskName = Annotated[
    str | None, typer.Option(help="A known task (`bara tasks`) or a local .jsonl/.csv file.")
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder <data-dir>/<task>/<split>.jsonl, used instead of the hub.")
]
Seed = Annotated[int | None, typer.Option(help="Seed of initial values, data order and noise.")]
Samples = Annotated[
    list[int] | None, typer.Option(help="Posterior draws S; 0 is the posterior mean. Can be repeated.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:0, mps.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16, of the frozen weights.")]
Config = Annotated[Path | None, typer.Option(help="YAML file with any of the settings.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. method.form=gate.")
]
Run = Annotated[Path, typer.Argument(help="Folder of a finished run.")]


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    method: Method = None,
    model: Model = None,
    task: TaskName = None,
    data_dir: DataDir = None,
    seed: Seed = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows a step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    samples: Samples = None,
    device: Device = None,
    dtype: Dtype = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")
    ] = False,
    config: Config = None,
    assignments: Set = None,
) -> None:
    """Fine-tune, then evaluate on the test split; writes one folder a run."""
    from bara_pyro import commands

    overrides: dict[str, Any] = {
        "method": method,
        "backbone.name": model,
        "backbone.device": device,
        "backbone.dtype": dtype,
        "task.name": task,
        "task.data_dir": None if data_dir is None else str(data_dir),
        "seed": seed,
        "train.steps": steps,
        "train.batch_size": batch_size,
        "train.lr": lr,
        "predict.samples": samples or None,
    }
    commands.train(out, overrides, config, assignments or [], resume=resume)


@app.command()
def evaluate(
    run: Run,
    samples: Samples = None,
    task: TaskName = None,
    split: Annotated[str | None, typer.Option(help="'test' or 'validation'.")] = None,
    model: Model = None,
    data_dir: DataDir = None,
    device: Device = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; the run's own by default.")
    ] = None,
) -> None:
    """Evaluate a finished run again: other numbers of draws, another split, another task (shifted data)."""
    from bara_pyro import commands

    commands.evaluate(
        run, samples=samples, task=task, split=split, model=model, data_dir=data_dir, device=device, out=out
    )


@app.command()
def predict(
    run: Run,
    input_file: Annotated[
        Path, typer.Option("--input", help="Rows to answer, .jsonl; answers are not needed.")
    ],
    output: Annotated[Path, typer.Option(help="Where to write one JSON object a row.")],
    samples: Annotated[int, typer.Option(help="Posterior draws S; 0 is the posterior mean.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    model: Model = None,
    data_dir: DataDir = None,
    device: Device = None,
) -> None:
    """Answer rows: class probabilities, predicted label, total / aleatoric / epistemic uncertainty (nats)."""
    from bara_pyro import commands

    commands.predict(
        run, input_file, output, samples=samples, seed=seed, model=model, data_dir=data_dir, device=device
    )


@app.command()
def params(
    method: Annotated[str, typer.Option(help="Method; `bara methods` lists them.")] = "bara",
    arch: Annotated[str | None, typer.Option(help="A published architecture, no weights needed.")] = None,
    model: Model = None,
    assignments: Set = None,
) -> None:
    """Count trainable parameters, on a published architecture or a local model."""
    from bara_pyro import commands

    commands.params(method, arch=arch, model=model, assignments=assignments or [])


@app.command()
def methods() -> None:
    """List the methods."""
    from bara_pyro import commands

    commands.methods()


@app.command()
def tasks(
    name: Annotated[str | None, typer.Argument(help="Show rows of this task.")] = None,
    data_dir: DataDir = None,
    rows: Annotated[int, typer.Option(help="How many rows to show.")] = 2,
) -> None:
    """List the tasks, or show what a task's prompts look like."""
    from bara_pyro import commands

    commands.tasks(name, data_dir=data_dir, rows=rows)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs, pictures and index.html.")] = Path("runs/demo"),
    task: Annotated[str, typer.Option(help="A task of the microworld.")] = "micro-wgs",
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few steps only: shows that everything works.")
    ] = False,
) -> None:
    """Fine-tune LoRA and both forms of BaRA on a small task and compare their probabilities."""
    from bara_pyro import demo as program

    program.demo(out, task=task, seed=seed, quick=quick)


@micro.command("build")
def microworld_build(
    out: Annotated[Path, typer.Option(help="Folder of the backbone.")],
    seed: Annotated[int, typer.Option(help="Seed of the pretraining.")] = 0,
    steps: Annotated[
        int | None, typer.Option(help="Pretraining steps; the shipped number by default.")
    ] = None,
    card: Annotated[
        Path | None, typer.Option(help="Also measure every task and write the card here.")
    ] = None,
) -> None:
    """Rebuild the microworld's backbone from nothing (up to 20 minutes on two cores)."""
    from bara_pyro import commands

    commands.microworld_build(out, seed=seed, steps=steps, card=card)


def main() -> None:
    """Run the command line; a mistake of the user's is one sentence on stderr and exit code 2."""
    try:
        app()
    except BaraError as error:
        typer.secho(f"Error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()

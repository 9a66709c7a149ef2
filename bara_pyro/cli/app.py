"""`bara`: train, evaluate and predict from the command line."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bara_pyro.errors import BaraError

app = typer.Typer(
    help="Fine-tune language models with calibrated uncertainty: BaRA and its rivals as Pyro programs.",
    epilog="Start with: bara demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
micro = typer.Typer(help="The small world that ships with the package.", no_args_is_help=True)
app.add_typer(micro, name="microworld")

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
TextColumn = Annotated[
    str | None,
    typer.Option(help="Column of the text or question in your own file.", rich_help_panel=DATA),
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Column of the answer in your own file.", rich_help_panel=DATA)
]
ChoicesColumn = Annotated[
    str | None, typer.Option(help="Column of each row's options in your own file.", rich_help_panel=DATA)
]
ContextColumn = Annotated[
    str | None, typer.Option(help="Column of a text put before the question.", rich_help_panel=DATA)
]
Classes = Annotated[
    list[str] | None,
    typer.Option(help="A label of your own file; repeated, all in class order.", rich_help_panel=DATA),
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
        "several tokens; 'auto': words where they are single tokens, else letters. (default: auto)",
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


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Folder to write: weights, scores, predictions, log.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, with its own settings.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed of initial values, data order and noise. (default: 0)")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps. (default: 3000)")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows a step. (default: 4)")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate. (default: 0.001)")] = None,
    samples: Samples = None,
    config: Config = None,
    assignments: Set = None,
    method: Method = None,
    model: Model = None,
    device: Device = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Type of the frozen weights: float32, bfloat16 or float16. (default: float32)",
            rich_help_panel=MODEL,
        ),
    ] = None,
    task: TaskName = None,
    data_dir: DataDir = None,
    test_file: TestFile = None,
    test_fraction: TestFraction = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    choices_column: ChoicesColumn = None,
    context_column: ContextColumn = None,
    classes: Classes = None,
    validation_rows: ValidationRows = None,
    labels: Labels = None,
    too_long: TooLong = None,
    revision: Revision = None,
    limit: Limit = None,
) -> None:
    """Fine-tune a model on a task, then evaluate it on the test rows; writes one folder."""
    from bara_pyro.cli import commands

    overrides: dict[str, Any] = {
        "method": method,
        "backbone.name": model,
        "backbone.device": device,
        "backbone.dtype": dtype,
        "task.name": task,
        "task.data_dir": data_dir,
        "task.test_file": test_file,
        "task.test_fraction": test_fraction,
        "task.text_column": text_column,
        "task.label_column": label_column,
        "task.choices_column": choices_column,
        "task.context_column": context_column,
        "task.classes": classes or None,
        "task.validation_rows": validation_rows,
        "task.labels": labels,
        "task.too_long": too_long,
        "task.revision": revision,
        "task.limit": limit,
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
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results. (default: RUN/evaluation/<task>-<split>)"),
    ] = None,
    samples: Samples = None,
    split: Annotated[
        str | None,
        typer.Option(help="'test' or 'validation'; the run's own by default.", rich_help_panel=DATA),
    ] = None,
    task: OtherTask = None,
    data_dir: DataDir = None,
    test_file: TestFile = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    choices_column: ChoicesColumn = None,
    context_column: ContextColumn = None,
    limit: Limit = None,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Evaluate a finished run again: other numbers of draws, another split, other data."""
    from bara_pyro.cli import commands

    given: dict[str, Any] = {"name": task, "data_dir": data_dir, "test_file": test_file, "limit": limit}
    given |= {"text_column": text_column, "label_column": label_column}
    given |= {"choices_column": choices_column, "context_column": context_column}
    changes = {key: value for key, value in given.items() if value is not None}
    commands.evaluate(run, samples=samples, task=changes, split=split, model=model, device=device, out=out)


@app.command()
def predict(
    run: Run,
    input_file: Annotated[
        Path,
        typer.Option("--input", help="Rows like those trained on, in a file; answers are not needed."),
    ],
    output: Annotated[Path, typer.Option(help="File to write: .jsonl, .csv, .tsv or .parquet.")],
    samples: Annotated[int, typer.Option(min=0, help="Posterior draws S; 0 for the posterior mean.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --output if it is there.")] = False,
    text_column: TextColumn = None,
    choices_column: ChoicesColumn = None,
    context_column: ContextColumn = None,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Answer questions: class probabilities, predicted label, total, aleatoric and epistemic uncertainty.

    Uncertainty is in nats: total is the entropy of the prediction, aleatoric the part that is in the question
    itself, epistemic the part that comes from not knowing the weights.
    """
    from bara_pyro.cli import commands
    from bara_pyro.data import Given

    commands.predict(
        run,
        input_file,
        output,
        samples=samples,
        seed=seed,
        model=model,
        device=device,
        overwrite=overwrite,
        given=Given(text_column, None, choices_column, context_column),
    )


@app.command()
def inspect(
    run: Run,
    rows: Annotated[int, typer.Option(min=8, help="Test rows to look at.")] = 256,
    samples: Annotated[
        int, typer.Option(min=2, help="Posterior draws S; the draws of all parts, and the time, go with it.")
    ] = 50,
    tau: Annotated[float, typer.Option(min=0, help="Threshold below which a gate counts as off.")] = 0.1,
    text: Annotated[
        list[str] | None,
        typer.Option(help="A text for the token maps, in place of nine short ones; can be repeated."),
    ] = None,
    data_dir: DataDir = None,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Look inside a run: where its rank goes, which tokens use it, how sure to be of its posterior.

    Writes RUN/report: a page (index.html), its figures, token maps, every number as JSON, and the draws as
    netCDF for ArviZ.
    """
    from bara_pyro.cli import commands

    commands.inspect(
        run,
        rows=rows,
        samples=samples,
        tau=tau,
        texts=text or [],
        data_dir=data_dir,
        model=model,
        device=device,
    )


@app.command()
def prune(
    run: Run,
    out: Annotated[Path, typer.Option(help="Folder for the smaller run.")],
    tolerance: Annotated[
        float, typer.Option(help="Largest change of a class probability on the calibration rows.")
    ] = 0.01,
    rows: Annotated[int, typer.Option(min=1, help="Training rows to calibrate on.")] = 256,
    curve: Annotated[
        bool, typer.Option(help="Measure scores, size and time along a curve of kept rank, too.")
    ] = True,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Drop the units of the adapters that do nothing: a smaller run with the same predictions.

    For BaRA and LoRA. A unit's importance is the size of what it adds to its layer's output. The smaller run
    is read by every other command; of a LoRA by PEFT, too.
    """
    from bara_pyro.cli import commands

    commands.prune(run, out, tolerance=tolerance, rows=rows, curve=curve, model=model, device=device)


@app.command()
def params(
    method: Annotated[str, typer.Option(help="Method; `bara methods` lists them.")] = "bara",
    arch: Annotated[
        str | None, typer.Option(help="A published architecture, for example qwen2.5-7b; needs no weights.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Or a model: 'microworld', a local folder or a hub name.")
    ] = None,
    assignments: Set = None,
) -> None:
    """Count a method's trainable parameters."""
    from bara_pyro.cli import commands

    commands.params(method, arch=arch, model=model, assignments=assignments or [])


@app.command()
def methods() -> None:
    """List the methods."""
    from bara_pyro.cli import commands

    commands.methods()


@app.command()
def tasks(
    name: Annotated[str | None, typer.Argument(metavar="[TASK]", help="Show some rows of this task.")] = None,
    data_dir: DataDir = None,
    rows: Annotated[int, typer.Option(min=0, help="How many rows to show.")] = 2,
) -> None:
    """List the tasks, or show what the model is asked in one of them."""
    from bara_pyro.cli import commands

    commands.tasks(name, data_dir=data_dir, rows=rows)


@app.command()
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


@micro.command("build")
def microworld_build(
    out: Annotated[Path, typer.Option(help="Folder to write the language model to.")],
    seed: Annotated[int, typer.Option(help="Seed of the pretraining.")] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Pretraining steps; as many as the shipped one had by default.")
    ] = None,
    hidden_size: Annotated[
        int | None, typer.Option(help="Width, a multiple of 32. (default: 128, as shipped)")
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Depth. (default: 4, as shipped)")] = None,
    card: Annotated[
        Path | None, typer.Option(help="Measure every task, too, and write the card to this file.")
    ] = None,
) -> None:
    """Pretrain the small world's language model from nothing (up to 20 minutes on two cores)."""
    from bara_pyro.cli import commands

    commands.microworld_build(out, seed=seed, steps=steps, hidden_size=hidden_size, layers=layers)
    if card is not None:
        commands.microworld_card(card, model=str(out), runs=out.parent / "card-runs", seeds=3)


@micro.command("card")
def microworld_card(
    out: Annotated[Path, typer.Option(help="Markdown file to write.")] = Path("docs/microworld.md"),
    model: Annotated[
        str, typer.Option(help="'microworld' (as shipped) or the folder of a rebuilt one.")
    ] = "microworld",
    runs: Annotated[Path, typer.Option(help="Folder for the runs that are measured.")] = Path("runs/card"),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of LoRA.")] = 3,
) -> None:
    """Measure every task (zero-shot, Bayes, LoRA over seeds) and write the card; can be resumed."""
    from bara_pyro.cli import commands

    commands.microworld_card(out, model=model, runs=runs, seeds=seeds)


def main() -> None:
    """Run the command line; a mistake of the user's is one sentence on stderr and exit code 2."""
    try:
        app(prog_name="bara")
    except BaraError as error:
        typer.secho(f"Error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()

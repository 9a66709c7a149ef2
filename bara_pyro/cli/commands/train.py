"""`bara train`: fine-tune a model on a task."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bara_pyro.cli.options import (
    MODEL,
    Config,
    DataDir,
    Device,
    Labels,
    Limit,
    Method,
    Model,
    Revision,
    Samples,
    Set,
    TaskName,
    TestFile,
    TestFraction,
    TooLong,
    ValidationRows,
)


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
    validation_rows: ValidationRows = None,
    labels: Labels = None,
    too_long: TooLong = None,
    revision: Revision = None,
    limit: Limit = None,
) -> None:
    """Fine-tune a model on a task, then evaluate it on the test rows; writes one folder."""
    from bara_pyro.cli.running import run
    from bara_pyro.cli.terminal import say, score_rows, score_table, show
    from bara_pyro.errors import ConfigError
    from bara_pyro.runs.config import differences, load_config
    from bara_pyro.runs.folder import CONFIG, stored_config
    from bara_pyro.runs.train import check_free

    overrides: dict[str, Any] = {
        "method": method,
        "backbone.name": model,
        "backbone.device": device,
        "backbone.dtype": dtype,
        "task.name": task,
        "task.data_dir": data_dir,
        "task.test_file": test_file,
        "task.test_fraction": test_fraction,
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
    check_free(out, resume)  # before anything slow
    started = stored_config(out)[0] if resume and (out / CONFIG).exists() else None
    settings = load_config(config, overrides, assignments or [], base=started)
    if started is not None and (changed := differences(started, settings)):
        raise ConfigError(
            f"{out} was started with another {', '.join(changed)}: leave the settings out to resume it as it "
            "was, or choose another --out."
        )
    report = run(settings, out, resume=resume)
    show(score_table(score_rows(report)))
    say(f"Written to {out}")

"""`bara evaluate`: score a finished run on other rows or with other draws."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bara_pyro.cli.options import (
    DATA,
    DataDir,
    Limit,
    Moved,
    OtherTask,
    Overwrite,
    Run,
    RunDevice,
    Samples,
    TestFile,
    Verbose,
    path,
    takes_columns,
)
from bara_pyro.cli.wrap import TRAIN, listed
from bara_pyro.columns import KINDS, UNNAMED, ColumnNames, column_options
from bara_pyro.types import Json

if TYPE_CHECKING:
    from bara_pyro.runs.config import RunConfig

OF_THE_MODEL = (
    "max_length",
    "too_long",
    "labels",
    "text_score",
    "likelihood",
    "chat",
    "system",
    "evaluate_on",
)
"""Settings of a task that other rows are also read with."""


@listed(
    TRAIN,
    *("out", "overwrite", "samples", "split", "task", "test_file", "text_column", "label_column"),
    *("model", "device"),
)
@takes_columns(*KINDS)
def evaluate(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(parser=path, help="Folder for the results. (default: RUN/evaluation/<task>-<split>)"),
    ] = None,
    overwrite: Overwrite = False,
    verbose: Verbose = False,
    samples: Samples = None,
    split: Annotated[
        str | None,
        typer.Option(help="'test' or 'validation'. (default: the run's)", rich_help_panel=DATA),
    ] = None,
    task: OtherTask = None,
    data_dir: DataDir = None,
    test_file: TestFile = None,
    columns: ColumnNames = UNNAMED,
    limit: Limit = None,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Evaluate a finished run on other rows, another split, or with other numbers of draws."""
    from bara_pyro.cli.checks import check_folder, note_of_draws, refuse, show_every_column
    from bara_pyro.errors import ConfigError
    from bara_pyro.runs.manifest import check_not_uploaded, check_run, is_run

    show_every_column(verbose)
    check_run(run)
    check_not_uploaded(run, out or run / "evaluation")
    if out is not None:
        if is_run(out):
            raise ConfigError(
                f"{out} is a run, whose scores would be replaced: choose another folder for --out."
            )
        check_folder(out, overwrite=overwrite, inputs=[run])

    from bara_pyro.cli.learning import warn_unlearnt
    from bara_pyro.cli.running import evaluate_with_progress, show_scores
    from bara_pyro.cli.terminal import result, say, say_next, say_notes
    from bara_pyro.core.likelihood import AnswerLikelihood
    from bara_pyro.data import is_file_name
    from bara_pyro.data.rows import same_file
    from bara_pyro.runs.folder import load_system
    from bara_pyro.runs.predict import check_rows_of_run, rows_to_evaluate
    from bara_pyro.runs.steps import train_seconds
    from bara_pyro.runs.stored import stored_config

    task_name = stored_config(run)[0].task.name
    if task is not None and Path(task).exists() and same_file(task, task_name):
        task = None  # the run's own, spelled differently
    if task is not None and test_file is not None:
        refuse(["task"], f"and --test-file {test_file} both name rows: leave out the file")
    typed: Json = {"name": task, "data_dir": data_dir, "test_file": test_file, "limit": limit}
    changes = {key: value for key, value in typed.items() if value is not None} | column_options(columns)
    if split is None and (test_file is not None or (task is not None and is_file_name(task))):
        split = "test"  # all rows of a file are test rows
    config = _evaluation_config(stored_config(run)[0], samples, changes, split)
    data = rows_to_evaluate(run, config)
    say_notes(data.notes)
    if out is None:
        out = run / "evaluation" / f"{data.name}-{config.task.evaluate_on}"
        check_folder(out, overwrite=overwrite)
    system = replace(load_system(run, backbone=model, device=device, task=data), config=config)
    note_of_draws(system, samples=max(samples or [1]))
    if task is None and test_file is None:
        check_rows_of_run(system, run, data_dir)
    report = evaluate_with_progress(
        system, out, f"{config.method.name} on {data.name}", wall_clock_train_s=train_seconds(run)
    )
    show_scores(report)
    if task is None:  # scores of another task say little about training
        warn_unlearnt(system, out, report)
    say(f"Written to {out}")
    if isinstance(system.model.likelihood, AnswerLikelihood):  # others cannot be inspected
        say_next("bara", "inspect", run)
    result(report)


def _evaluation_config(
    config: "RunConfig", samples: list[int] | None, task: Json, split: str | None
) -> "RunConfig":
    """Return the configuration of a run with other settings of prediction or another task."""
    from bara_pyro.runs.assignments import set_key
    from bara_pyro.runs.config import parse_config

    data = config.dump()
    if "name" in task:
        # Settings of the training rows do not apply to other rows.
        data["task"] = {key: data["task"][key] for key in OF_THE_MODEL if key in data["task"]}
    for key, value in task.items():
        set_key(data, f"task.{key}", value)
    if samples:
        set_key(data, "predict.samples", samples)
    if split:
        set_key(data, "task.evaluate_on", split)
    return parse_config(data, stored=True)

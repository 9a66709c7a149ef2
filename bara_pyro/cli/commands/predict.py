"""`bara predict`: answer texts, or the rows of a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bara_pyro.cli.options import (
    Moved,
    Overwrite,
    RunDevice,
    RunOrServer,
    SampleCount,
    Seed,
    path,
    takes_columns,
)
from bara_pyro.cli.wrap import TRAIN, listed
from bara_pyro.columns import UNNAMED, ColumnNames
from bara_pyro.lazy import uncollected
from bara_pyro.runs.remote import is_address, predict_remotely

if TYPE_CHECKING:
    from bara_pyro.runs.system import System

OF_SERVERS = ("samples", "seed", "model", "device", "text_column", "choices_column", "context_column")
STANDARD = ("-", "/dev/stdout")  # names of standard output, where rows go without --output


@listed(TRAIN)
@takes_columns("text", "choices", "context")
def predict(
    run: RunOrServer,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="Texts in the format of training; or give --input.",
            show_default=False,
        ),
    ] = None,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            parser=path,
            help="File of rows in the format of training; labels are optional.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            parser=path,
            help="File to write: .jsonl, .csv, .tsv or .parquet. (default: JSON lines on standard output)",
        ),
    ] = None,
    overwrite: Overwrite = False,
    samples: SampleCount = 10,
    seed: Seed = 0,
    columns: ColumnNames = UNNAMED,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Answer texts or the rows of a file, with probabilities and uncertainty.

    Each row gets its label, its probabilities and three uncertainties in nats. Total is the entropy of the
    prediction. Aleatoric is the part that more training rows would not reduce; epistemic is the part that
    they would. The columns of a file are kept.
    """
    from bara_pyro.cli.checks import check_rows, note_of_draws, refuse

    rows = _asked(texts, input_file)
    output = None if str(output) in STANDARD else output
    remote = is_address(run)
    if remote:
        refuse(OF_SERVERS, "belongs to the server: give it to `bara serve`")
    files = [] if input_file is None else [input_file]
    check_rows(None if remote else Path(run), files, output, overwrite=overwrite)

    from bara_pyro.cli.terminal import print_rows, progress, remark, result, say, say_notes
    from bara_pyro.runs.answers import write_predictions

    title = f"predict {'texts' if input_file is None else input_file.name}"
    system = None
    if remote:
        with progress(title, None) as advance:
            answers = predict_remotely(run, rows, advance)
    else:
        with uncollected():
            from bara_pyro.runs.folder import load_system
            from bara_pyro.runs.predict import predict as answered

            system = load_system(run, backbone=model, device=device, with_rows=False)
        note_of_draws(system, samples=samples, seed=seed)
        with progress(title, None) as advance:
            answers = answered(
                system,
                rows,
                samples=samples,
                seed=seed,
                given=columns,
                on_rows=advance,
                on_total=lambda total: advance(0, total=total),
            )
    if output is not None:
        write_predictions(output, answers.lines, answers.to_pandas)
        say_notes(answers.notes)
        say(f"Rows written to {output}: {len(answers.rows)}")
        if system is not None:
            _say_next(Path(run), system, input_file)
        result({"output": output, "rows": len(answers.rows), "notes": answers.notes})
        return
    for note in answers.notes:
        remark(f"Note: {note}")
    print_rows(answers.lines())
    result({"output": None, "rows": answers.lines(), "notes": answers.notes})


def _say_next(run: Path, system: "System", file: Path | None) -> None:
    """Print how to answer only the rows whose answers can be trusted."""
    from bara_pyro.cli.terminal import say_next

    words = ["bara", "abstain", run, *(["--input", file] if file is not None else [])]
    if not system.config.task.validation_rows:
        words += ["--calibration", "FILE"]
    say_next(*words, remark="keeps only answers that are likely right")


def _asked(texts: list[str] | None, file: Path | None) -> list[str] | Path:
    """Return the texts, or the file, to answer; a `ConfigError` if neither is given, or both are."""
    from bara_pyro.errors import ConfigError
    from bara_pyro.untrusted.files import there

    if texts and file is not None:
        raise ConfigError(f"Both texts and --input {file} are given: give one of them.")
    if file is not None:
        return file
    if not texts:
        raise ConfigError("There is nothing to predict: give a text in quotation marks, or --input FILE.")
    if files := [text for text in texts if Path(text).suffix and there(Path(text))]:
        raise ConfigError(f"{files[0]} is a file, not a text: give it with --input.")
    return texts

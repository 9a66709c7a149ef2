"""`bara predict`: answers to texts, or to the rows of a file."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import (
    Moved,
    Overwrite,
    Run,
    RunDevice,
    Seed,
    path,
    takes_columns,
)
from bara_pyro.cli.wrap import TRAIN, listed
from bara_pyro.columns import UNNAMED, ColumnNames
from bara_pyro.runs.sections import MOST_DRAWS

STANDARD = ("-", "/dev/stdout")  # names of standard output, which is where rows go without --output


@listed(TRAIN)
@takes_columns("text", "choices", "context")
def predict(
    run: Run,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...", help="Texts like those trained on; or give --input.", show_default=False
        ),
    ] = None,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            parser=path,
            help="Rows like those trained on, in a file; without answers, or with those of the run.",
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
    samples: Annotated[
        int, typer.Option(min=0, max=MOST_DRAWS, help="Posterior draws S; 0 for the posterior mean.")
    ] = 10,
    seed: Seed = 0,
    columns: ColumnNames = UNNAMED,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Answer texts or the rows of a file: probabilities, label, total, aleatoric and epistemic uncertainty.

    Uncertainty is in nats: total is the entropy of the prediction, aleatoric the part that is in the question
    itself, epistemic the part that comes from not knowing the weights. The columns of a file are kept.
    """
    from bara_pyro.cli.outputs import check_rows
    from bara_pyro.cli.typed import note_of_draws

    asked = _asked(texts, input_file)
    output = None if str(output) in STANDARD else output
    check_rows(run, [] if input_file is None else [input_file], output, overwrite=overwrite)

    from bara_pyro.cli.terminal import print_rows, progress, remark, result, say, say_notes
    from bara_pyro.runs.answers import write_answers
    from bara_pyro.runs.folder import load_system
    from bara_pyro.runs.predict import predict as answered

    system = load_system(run, backbone=model, device=device, with_rows=False)
    note_of_draws(system, samples=samples, seed=seed)
    with progress(f"predict {'texts' if input_file is None else input_file.name}", None) as advance:
        found = answered(system, asked, samples=samples, seed=seed, given=columns, on_rows=advance)
    if output is not None:
        write_answers(output, found)
        say_notes(found.notes)
        say(f"Rows written to {output}: {len(found.rows)}")
        result({"output": output, "rows": len(found.rows), "notes": found.notes})
        return
    for note in found.notes:
        remark(f"Note: {note}")
    print_rows(found.lines())
    result({"output": None, "rows": found.lines(), "notes": found.notes})


def _asked(texts: list[str] | None, file: Path | None) -> list[str] | Path:
    """Return what is asked: texts, or the rows of a file.

    Raises:
        ConfigError: neither is given, or both are.
    """
    from bara_pyro.errors import ConfigError

    if texts and file is not None:
        raise ConfigError(f"Texts and --input {file} are given: give one of the two.")
    if file is not None:
        return file
    if not texts:
        raise ConfigError("There is nothing to predict: give a text in quotation marks, or --input FILE.")
    return texts

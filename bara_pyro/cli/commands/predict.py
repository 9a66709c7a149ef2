"""`bara predict`: answers to the questions of a file."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import (
    ChoicesColumn,
    ContextColumn,
    Moved,
    Overwrite,
    Run,
    RunDevice,
    Seed,
    TextColumn,
    path,
)
from bara_pyro.runs.sections import MOST_DRAWS


def predict(
    run: Run,
    input_file: Annotated[
        Path,
        typer.Option(
            "--input",
            parser=path,
            help="Rows like those trained on, in a file; without answers, or with those of the run.",
        ),
    ],
    output: Annotated[Path, typer.Option(parser=path, help="File to write: .jsonl, .csv, .tsv or .parquet.")],
    overwrite: Overwrite = False,
    samples: Annotated[
        int, typer.Option(min=0, max=MOST_DRAWS, help="Posterior draws S; 0 for the posterior mean.")
    ] = 10,
    seed: Seed = 0,
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
    from bara_pyro.cli.outputs import check_rows

    check_rows(run, [input_file], output, overwrite=overwrite)

    from bara_pyro.cli.terminal import progress, result, say, say_notes
    from bara_pyro.data import Given
    from bara_pyro.runs.folder import load_system
    from bara_pyro.runs.predict import predict as answered
    from bara_pyro.runs.predict import write_answers

    system = load_system(run, backbone=model, device=device, with_rows=False)
    given = Given(text_column, None, choices_column, context_column)
    with progress(f"predict {input_file.name}", None) as advance:
        found = answered(system, input_file, samples=samples, seed=seed, given=given, on_rows=advance)
    write_answers(output, found, system.task)
    say_notes(found.notes)
    say(f"Rows written to {output}: {len(found.rows)}")
    result({"output": output, "rows": len(found.rows), "notes": found.notes})

"""`bara predict`: answers to the questions of a file."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import Moved, Overwrite, Run, RunDevice, Seed, path
from bara_pyro.runs.sections import MOST_DRAWS


def predict(
    run: Run,
    input_file: Annotated[
        Path,
        typer.Option(
            "--input",
            parser=path,
            help="Questions, .jsonl, .json or .csv; answers are not needed.",
        ),
    ],
    output: Annotated[Path, typer.Option(parser=path, help="File to write, one JSON object a row.")],
    overwrite: Overwrite = False,
    samples: Annotated[
        int, typer.Option(min=0, max=MOST_DRAWS, help="Posterior draws S; 0 for the posterior mean.")
    ] = 10,
    seed: Seed = 0,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Answer questions: class probabilities, predicted label, total, aleatoric and epistemic uncertainty.

    Uncertainty is in nats: total is the entropy of the prediction, aleatoric the part that is in the question
    itself, epistemic the part that comes from not knowing the weights.
    """
    from bara_pyro.cli.outputs import check_file
    from bara_pyro.errors import DataError
    from bara_pyro.runs.manifest import check_run

    if not input_file.is_file():
        raise DataError(f"There is no file {input_file}.")
    check_file(output, overwrite=overwrite, inputs=[input_file, run], option="--output")
    check_run(run)

    from bara_pyro.cli.terminal import progress, result, say
    from bara_pyro.data import encode, load_questions
    from bara_pyro.runs.evaluate import draw, uncertainty_rows
    from bara_pyro.runs.folder import load_system
    from bara_pyro.runs.store import write_jsonl

    system = load_system(run, backbone=model, device=device, with_rows=False)
    rows = load_questions(input_file, system.task)
    c = system.config.task
    split = encode(rows, system.backbone.tokenizer, c.max_length, too_long=c.too_long)
    with progress(f"predict {input_file.name}", len(split)) as advance:
        draws = draw(system, split, samples, seed=seed, on_rows=advance)
    write_jsonl(output, uncertainty_rows(draws, split.ids, system.task.labels))
    dropped = f", {len(split.dropped)} left out: their question is too long" if split.dropped else ""
    say(f"{len(split)} rows written to {output}{dropped}")
    result({"output": output, "rows": len(split), "dropped": len(split.dropped)})

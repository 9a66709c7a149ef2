"""`bara abstain`: answers where they are right often enough, and nothing elsewhere."""

from typing import Annotated

import typer

from bara_pyro.cli.deciding import Calibration, DecisionCommand, Draws, InputFile, OutputFile
from bara_pyro.cli.options import Moved, Overwrite, Run, RunDevice, Seed, takes_columns
from bara_pyro.cli.wrap import DECIDE, listed
from bara_pyro.columns import KINDS, UNNAMED, ColumnNames


@listed(
    DECIDE,
    *("input_file", "output", "overwrite", "risk", "delta", "calibration", "samples", "text_column"),
    *("label_column", "model", "device"),
)
@takes_columns(*KINDS)
def abstain(
    run: Run,
    input_file: InputFile = None,
    output: OutputFile = None,
    overwrite: Overwrite = False,
    risk: Annotated[
        float, typer.Option(min=0, max=1, help="Error rate that the answered rows to come may have.")
    ] = 0.1,
    delta: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Probability, over calibration rows, that it is larger all the same."
        ),
    ] = 0.05,
    calibration: Calibration = None,
    samples: Draws = 10,
    seed: Seed = 0,
    columns: ColumnNames = UNNAMED,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Answer only rows whose confidence is above a threshold, so that errors stay at a stated rate.

    With probability 1 - delta over the calibration rows at most a share `risk` of the answers to rows to come
    is wrong, if these are drawn as the calibration rows were (docs/decide.md).
    """
    from bara_pyro.runs.answers_file import ABSTENTION_KEYS

    question = DecisionCommand(
        run, input_file, output, overwrite, calibration, samples, seed, columns, model, device
    )
    question.check(ABSTENTION_KEYS)
    from bara_pyro.metrics.abstention import ranks
    from bara_pyro.runs.decide import decide_abstention

    system, known, asked = question.ask(lambda _, rows: ranks(rows, risk, delta))
    decided = decide_abstention(known, asked, system.task, risk=risk, delta=delta)
    found, rule = decided.summary, decided.rule
    lines = [
        f"Answered where the confidence is above {rule.threshold:.4g}: {rule.answered} of {rule.rows} "
        f"calibration rows, {rule.wrong} of them wrongly. With probability {1 - delta:g} at most "
        f"{100 * risk:g} % of the answers to rows to come are wrong.",
        f"{found['answered']} of {found['rows']} rows are answered.",
    ]
    if found["error_rate"] is not None:
        lines.append(f"{found['error_rate']:.1f} % of the answers that can be checked are wrong.")
    if found["expected_error_rate"] is not None:
        lines.append(f"Under the true distribution of answers: {found['expected_error_rate']:.1f} %.")
    question.finish(decided.rows, lines, {"calibration": vars(rule), **found})

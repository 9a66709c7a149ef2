"""`bara detect`: rows from elsewhere, with a stated rate of false alarms."""

from typing import TYPE_CHECKING, Annotated

import typer

from bara_pyro.cli.deciding import Calibration, DecisionCommand, Draws, InputFile, OutputFile
from bara_pyro.cli.options import Moved, Overwrite, Run, RunDevice, Seed, takes_columns
from bara_pyro.cli.wrap import DECIDE, listed
from bara_pyro.columns import UNNAMED, ColumnNames
from bara_pyro.types import Measure

if TYPE_CHECKING:
    from bara_pyro.runs.system import System

MEASURES = {
    "total": "entropy",
    "epistemic": "mutual information",
    "distance": "distance from the training rows",
}


@listed(
    DECIDE,
    *("input_file", "output", "overwrite", "alpha", "by", "calibration", "samples", "text_column"),
    *("model", "device"),
)
@takes_columns("text", "choices", "context", "cluster")
def detect(
    run: Run,
    input_file: InputFile = None,
    output: OutputFile = None,
    overwrite: Overwrite = False,
    alpha: Annotated[
        float, typer.Option(min=0, max=1, help="Share of rows at home that may be called foreign.")
    ] = 0.05,
    by: Annotated[
        Measure | None,
        typer.Option(
            help="total: entropy of the prediction; epistemic: mutual information; distance: from the "
            "training rows. (default: distance where the run was trained with --distance-aware, else total)"
        ),
    ] = None,
    calibration: Calibration = None,
    samples: Draws = 10,
    seed: Seed = 0,
    columns: ColumnNames = UNNAMED,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Tell rows from elsewhere: each gets a p-value of being a row like the calibration rows.

    Of rows drawn as these were at most a share alpha has p <= alpha, over both (docs/decide.md).
    """
    from bara_pyro.runs.answers_file import DETECTION_KEYS

    question = DecisionCommand(
        run, input_file, output, overwrite, calibration, samples, seed, columns, model, device
    )
    question.check(DETECTION_KEYS)
    from bara_pyro.metrics.conformal import allowed
    from bara_pyro.runs.asked import fitted_distance
    from bara_pyro.runs.decide import decide_detection

    def check(system: "System", rows: int) -> None:
        allowed(rows, alpha)
        if by == "distance":
            fitted_distance(system)

    system, known, asked = question.ask(check, answers=False)
    decided = decide_detection(system, known, asked, alpha=alpha, by=by)
    found, rows = decided.summary, len(known.examples)
    lines = [
        f"{found['foreign']} of {found['rows']} rows are from elsewhere by their {MEASURES[found['by']]}.",
        f"Of rows at home at most {100 * alpha:g} % are called so, on average over {rows} calibration rows "
        "such as these.",
    ]
    question.finish(decided.rows, lines, {"alpha": alpha, "calibration_rows": rows, **found})

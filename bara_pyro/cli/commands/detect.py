"""`bara detect`: find out-of-distribution rows at a chosen rate of false alarms."""

from typing import TYPE_CHECKING, Annotated

import typer

from bara_pyro.cli.deciding import DecisionCommand, decides
from bara_pyro.types import Measure

if TYPE_CHECKING:
    from bara_pyro.runs.system import System

MEASURES = {
    "total": "entropy",
    "epistemic": "mutual information",
    "distance": "distance from the training rows",
}


@decides("text", "choices", "context", "cluster")
def detect(
    question: DecisionCommand,
    alpha: Annotated[
        float, typer.Option(min=0, max=1, help="Largest share of in-distribution rows that are flagged.")
    ] = 0.05,
    by: Annotated[
        Measure | None,
        typer.Option(
            help="Score to flag rows by: total is the entropy of the prediction, epistemic the mutual "
            "information, distance how far a row is from the training rows. (default: distance if the run "
            "was trained with --distance-aware, else total)"
        ),
    ] = None,
) -> None:
    """Flag out-of-distribution rows: each row gets a p-value of being like the calibration rows.

    On average over calibration rows, at most a share --alpha of in-distribution rows is flagged
    (docs/decide.md).
    """
    from bara_pyro.runs.answers import DETECTION_KEYS

    question.check(DETECTION_KEYS)
    from bara_pyro.metrics.conformal import allowed
    from bara_pyro.runs.asked import fitted_distance
    from bara_pyro.runs.decide import decide_detection

    def check(system: "System", rows: int) -> None:
        allowed(rows, alpha)
        if by == "distance":
            fitted_distance(system)

    system, known, scored = question.ask(check, answers=False)
    decided = decide_detection(system, known, scored, alpha=alpha, by=by)
    summary, rows = decided.summary, len(known.examples)
    lines = [
        f"{summary['foreign']} of {summary['rows']} rows are flagged as out-of-distribution by their "
        f"{MEASURES[summary['by']]}.",
        f"At most {100 * alpha:g} % of in-distribution rows are flagged, on average over draws of {rows} "
        "calibration rows.",
    ]
    question.finish(decided.rows, lines, {"alpha": alpha, "calibration_rows": rows, **summary})

"""`bara conformal`: give each row a set of answers that contains the right one with a chosen probability."""

from typing import Annotated

import typer

from bara_pyro.cli.deciding import DecisionCommand, decides
from bara_pyro.types import SetScore


@decides()
def conformal(
    question: DecisionCommand,
    alpha: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Largest share of future rows whose right answer is missing from their set."
        ),
    ] = 0.1,
    score: Annotated[
        SetScore,
        typer.Option(
            help="lac: smallest sets on average, some may be empty. aps: larger sets for harder rows."
        ),
    ] = "lac",
) -> None:
    """Give each row a set of answers that contains the right one with probability 1 - alpha or more.

    This holds on average over calibration rows and future rows of the same distribution (docs/decide.md).
    """
    from bara_pyro.runs.answers import SET_KEYS

    question.check(SET_KEYS)
    from bara_pyro.metrics.conformal import allowed
    from bara_pyro.runs.decide import decide_sets

    system, known, scored = question.ask(lambda _, rows: allowed(rows, alpha))
    decided = decide_sets(known, scored, system.task, alpha=alpha, score=score)
    summary = decided.summary
    sizes = ", ".join(f"{rows} have {size}" for size, rows in summary["sizes"].items())
    reached = 100 * (1 - allowed(decided.rule.rows, alpha) / (decided.rule.rows + 1))
    lines = [
        f"The sets have {summary['mean_size']:.2f} answers on average: of {summary['rows']} rows {sizes}.",
        f"At least {reached:.1f} % of future rows have their right answer in their set, on average over "
        f"draws of {decided.rule.rows} calibration rows.",
    ]
    if summary["coverage"] is not None:
        lines.append(f"Of the labelled rows here {summary['coverage']:.1f} % have it.")
    if summary["expected_coverage"] is not None:
        lines.append(f"Under the true distribution {summary['expected_coverage']:.1f} % have it.")
    about = {"alpha": alpha, "score": score, "calibration_rows": decided.rule.rows}
    question.finish(decided.rows, lines, {**about, "threshold": decided.rule.threshold, **summary})

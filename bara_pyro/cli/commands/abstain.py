"""`bara abstain`: answer the rows that are right often enough, and leave the others open."""

from typing import Annotated

import typer

from bara_pyro.cli.deciding import DecisionCommand, decides


@decides()
def abstain(
    question: DecisionCommand,
    risk: Annotated[
        float, typer.Option(min=0, max=1, help="Largest error rate of the answers to future rows.")
    ] = 0.1,
    delta: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Probability, over draws of the calibration rows, that it is exceeded."
        ),
    ] = 0.05,
) -> None:
    """Answer only confident rows, so that the error rate stays below a limit.

    With probability 1 - delta over the calibration rows, at most a share --risk of the answers to future rows
    is wrong. This holds for rows from the same distribution as the calibration rows (docs/decide.md).
    """
    from bara_pyro.runs.answers import ABSTENTION_KEYS

    question.check(ABSTENTION_KEYS)
    from bara_pyro.metrics.abstention import ranks
    from bara_pyro.runs.decide import decide_abstention

    system, known, scored = question.ask(lambda _, rows: ranks(rows, risk, delta))
    decided = decide_abstention(known, scored, system.task, risk=risk, delta=delta)
    summary, rule = decided.summary, decided.rule
    lines = [
        f"Rows with a confidence above {rule.threshold:.4g} are answered: {rule.answered} of {rule.rows} "
        f"calibration rows, {rule.wrong} of them wrongly.",
        f"With probability {1 - delta:g} at most {100 * risk:g} % of the answers to future rows are wrong.",
        f"{summary['answered']} of {summary['rows']} rows are answered.",
    ]
    if summary["error_rate"] is not None:
        lines.append(f"Of the answers to labelled rows {summary['error_rate']:.1f} % are wrong.")
    if summary["expected_error_rate"] is not None:
        lines.append(f"Under the true distribution {summary['expected_error_rate']:.1f} % are wrong.")
    question.finish(decided.rows, lines, {"calibration": vars(rule), **summary})

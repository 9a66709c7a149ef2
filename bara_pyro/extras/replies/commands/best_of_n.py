"""`bara best-of-n`: how much the best of n replies gains."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import path
from bara_pyro.cli.wrap import TEXT, listed


@listed(TEXT)
def best_of_n(
    scores: Annotated[
        Path,
        typer.Argument(
            metavar="SCORES.jsonl",
            parser=path,
            help="Scored replies, written by `bara reward score`.",
        ),
    ],
    references: Annotated[
        Path | None,
        typer.Option(parser=path, help="One scored reference reply per prompt, for win rates."),
    ] = None,
) -> None:
    """Show the score of the best of n replies, its win rate and the diversity of replies.

    The scores are unbiased estimates over all choices of n replies; intervals are over prompts. A win rate is
    only as good as its judge.
    """
    from bara_pyro.cli.terminal import result, say, say_next, show
    from bara_pyro.extras.replies.generation.scored import read_scored, references_of
    from bara_pyro.extras.replies.generation.spread import FEW, diversity_of, sentences
    from bara_pyro.extras.replies.sampling import best_of_n as best
    from bara_pyro.extras.replies.sampling import best_of_n_win_rate
    from bara_pyro.report.table import Column, Table

    scored = read_scored(scores)
    curve = best(scored.scores)
    wins = None
    if references is not None:
        wins = best_of_n_win_rate(scored.scores, references_of(references, scored))
    count = scored.scores.shape[1]
    shown = [n for n in range(1, count + 1) if n & (n - 1) == 0 or n == count]
    rows = []
    for n in shown:
        row = {
            "n": n,
            "score": curve.mean[n - 1],
            "interval": _interval(curve.low[n - 1], curve.high[n - 1], 3),
        }
        if wins is not None:
            row |= {"wins": wins.mean[n - 1], "of wins": _interval(wins.low[n - 1], wins.high[n - 1], 1)}
        rows.append(row)
    columns = [
        Column("n", "n", format="d"),
        Column("score", "best score", format=".3f"),
        Column("interval", "95 %"),
    ]
    if wins is not None:
        columns += [Column("wins", "wins", "%", ".1f"), Column("of wins", "95 %")]
    show(Table(columns, rows, f"{len(scored.ids)} prompts, {count} replies each; intervals over prompts"))
    if scored.judge is not None:
        say(f"Judge: {scored.judge['name']}")
    report = {"prompts": len(scored.ids), "replies": count, "curve": rows, "judge": scored.judge}
    report |= {**scored.entropy, **diversity_of(scored.replies)}
    for sentence in sentences(report, min(FEW, count)):
        say(sentence)
    result(report)
    if references is None:
        say_next("bara", "best-of-n", scores, "--references", "REFERENCES.jsonl", remark="adds win rates")


def _interval(low: float, high: float, digits: int) -> str:
    return f"{low:.{digits}f} to {high:.{digits}f}"

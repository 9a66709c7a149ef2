"""`bara best-of-n`: what more replies are worth."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import Device, path
from bara_pyro.cli.wrap import TEXT, listed
from bara_pyro.types import Json


@listed(TEXT)
def best_of_n(
    scores: Annotated[
        Path,
        typer.Argument(
            metavar="SCORES.jsonl",
            parser=path,
            help="Replies with scores, as `bara reward score` writes them.",
        ),
    ],
    references: Annotated[
        Path | None,
        typer.Option(parser=path, help="One scored reference reply a prompt, to be beaten: win rates."),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(
            parser=path,
            metavar="FOLDER",
            help="A sentence encoder, a Hugging Face folder: also say how far its vectors of replies are "
            "apart (mean pooling).",
        ),
    ] = None,
    device: Device = None,
) -> None:
    """Show what the best of n replies is worth, how often it beats a reference, how different replies are.

    For every n up to the number of replies, unbiased over all choices of n; intervals are over prompts. A win
    rate is worth what its judge is worth: beside it stands how often that is right on held-out pairs.
    """
    import numpy as np

    from bara_pyro.cli.terminal import result, say, show
    from bara_pyro.cli.typed import refuse
    from bara_pyro.errors import ConfigError
    from bara_pyro.extras.replies.generation.encoder import encoder_distance
    from bara_pyro.extras.replies.generation.scored import read_scored, references_of
    from bara_pyro.extras.replies.generation.spread import FEW, diversity_of, sentences
    from bara_pyro.metrics import best_of_n as best
    from bara_pyro.metrics import best_of_n_win_rate
    from bara_pyro.report import Column, Table

    if encoder is None:
        refuse(["device"], "is of --encoder: give that")
    found = read_scored(scores)
    if encoder is not None and found.scores.shape[1] < 2:
        raise ConfigError("There is one reply a prompt, and a distance needs two: leave out --encoder.")
    curve = best(found.scores)
    wins = None
    if references is not None:
        wins = best_of_n_win_rate(found.scores, references_of(references, found))
    count = found.scores.shape[1]
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
            row |= {"judge": _right(found.judge)}
        rows.append(row)
    columns = [
        Column("n", "n", format="d"),
        Column("score", "best score", format=".3f"),
        Column("interval", "95 %"),
    ]
    if wins is not None:
        columns += [Column("wins", "wins", "%", ".1f"), Column("of wins", "95 %")]
        columns += [Column("judge", "judge right", "%")]
    show(Table(columns, rows, f"{len(found.ids)} prompts, {count} replies each; intervals over prompts"))
    say(_of_judge(found.judge))
    report = {"prompts": len(found.ids), "replies": count, "curve": rows, "judge": found.judge}
    report |= {**found.entropy, **diversity_of(found.replies)}
    few = min(FEW, count)
    for sentence in sentences(report, few):
        say(sentence)
    if encoder is not None:
        texts = [own[:FEW] for own in found.replies]
        report |= {"distance": float(np.mean(encoder_distance(texts, encoder, device=device or "cpu")))}
        report |= {"encoder": str(encoder)}
        say(f"Mean cosine distance of the first {few} replies, {encoder}: {report['distance']:.4f}")
    result(report)


def _right(judge: Json | None) -> str:
    """Return how often a judge is right, as it stands beside a win rate."""
    if judge is None or "accuracy" not in judge:
        return "unknown"
    return f"{judge['accuracy']:.1f} ({_interval(judge['low'], judge['high'], 1)})"


def _of_judge(judge: Json | None) -> str:
    from bara_pyro.extras.replies.reward.agreement import sentence_of

    if judge is not None and "accuracy" in judge:
        return f"{judge['name']} {sentence_of(judge)}"
    name = "the judge of these scores" if judge is None else judge["name"]
    return f"How often {name} agrees with people is not known."


def _interval(low: float, high: float, digits: int) -> str:
    return f"{low:.{digits}f} to {high:.{digits}f}"

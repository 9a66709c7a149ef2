"""Make the table of scores that training and evaluation end with."""

from collections.abc import Sequence

from bara_pyro.cli import terminal
from bara_pyro.report.table import Column, Table
from bara_pyro.types import Json

ABOUT = (Column("method", "method"), Column("S", "S", format="d"))
# Only replies have one.
PERPLEXITY = Column("perplexity", "perplexity", format=".2f", best="min")
SIZES = (
    Column("trainable", "params", format=",d"),
    Column("phi", "Φ", format=".1f"),
    Column("theta", "θ", format=".1f"),
    Column("psi", "Φθ", format=".1f"),
)


def score_columns() -> list[Column]:
    """Return the columns of the table of scores.

    Short headings and the units in the caption: with all its columns the table fits 80 characters.
    """
    # Imported here: metrics need torch, which takes seconds.
    from bara_pyro.metrics.base import METRICS

    metrics = [
        Column(metric.name, metric.heading, format=f".{metric.digits}f", best=metric.best)
        for metric in METRICS.values()
        if metric.heading
    ]
    return [*ABOUT, *metrics, PERPLEXITY, *SIZES]


def score_rows(report: Json, name: str | None = None) -> list[Json]:
    """Return the rows of the score table from a metrics.json, one for each number of draws."""
    common = {
        "method": name or report["method"],
        "trainable": report["parameters"]["trainable"],
        **report["sparsity"],
    }
    return [{**common, "S": int(s), **scores} for s, scores in report["metrics"].items()]


def show_scores(report: Json) -> None:
    """Print the table of scores, of classes with the majority class as a baseline.

    With `--verbose` it has columns for the parameter count and the gates.
    """
    rows = score_rows(report)
    if "majority_class" in report:
        # As text, so that the table marks the best of the methods and not the baseline.
        rows.append({"method": "majority class", "acc": f"{report['majority_class']['acc']:.1f}"})
    terminal.show(score_table(rows, sizes=terminal.mode.verbose))


def score_table(rows: Sequence[Json], *, sizes: bool = True) -> Table:
    """Return the table of scores without empty columns, and without `SIZES` unless `sizes`."""
    left_out = () if sizes else [column.key for column in SIZES]
    filled = [
        column
        for column in score_columns()
        if column.key not in left_out and any(row.get(column.key) is not None for row in rows)
    ]
    keys = {column.key for column in filled}
    if "perplexity" in keys:
        return Table(filled, rows, "NLL in nats per token, each reply scored under one draw")
    percent = "acc, ECE, gates below 0.1 (Φ, θ, Φθ)" if "psi" in keys else "acc, ECE"
    nats = "NLL, KL from the truth" if "kl_truth" in keys else "NLL"
    return Table(filled, rows, f"{percent} in %; {nats} in nats")

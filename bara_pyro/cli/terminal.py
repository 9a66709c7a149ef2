"""What the commands show: progress bars and the table of scores."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bara_pyro.report.table import Column, Table, rich_table

console = Console()

# Short headings and the units in the caption: with all its columns the table fits 80 characters.
SCORES = (
    Column("method", "method"),
    Column("S", "S", format="d"),
    Column("acc", "acc", format=".1f", best="max"),
    Column("ece", "ECE", format=".1f", best="min"),
    Column("nll", "NLL", format=".3f", best="min"),
    Column("brier", "Brier", format=".3f", best="min"),
    Column("kl_truth", "KL", format=".3f", best="min"),
    Column("trainable", "params", format=",d"),
    Column("phi", "Φ", format=".1f"),
    Column("theta", "θ", format=".1f"),
    Column("psi", "Φθ", format=".1f"),
)


class Advance(Protocol):
    """Moves a progress bar."""

    def __call__(self, count: int = 1, note: str = "", completed: int | None = None) -> None:
        """Add `count`, or go to `completed`, and show a note beside the bar."""


@contextmanager
def progress(description: str, total: int | None) -> Iterator[Advance]:
    """Show a progress bar, of an end that may not be known yet; yields what advances it."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(count: int = 1, note: str = "", completed: int | None = None) -> None:
            bar.update(task, advance=None if completed is not None else count, completed=completed, note=note)

        yield advance


def score_rows(report: dict[str, Any], name: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of the score table for what a metrics.json holds: one a number of draws."""
    common = {
        "method": name or report["method"],
        "trainable": report["parameters"]["trainable"],
        **report["sparsity"],
    }
    return [{**common, "S": int(s), **scores} for s, scores in report["metrics"].items()]


def baseline_rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the row of the score table that always answers the most frequent class."""
    # As text, so that the table marks the best of the methods and not the baseline.
    return [{"method": "majority class", "acc": f"{report['majority_class']['acc']:.1f}"}]


def say_notes(notes: Sequence[str]) -> None:
    """Print what is worth knowing about the rows."""
    for note in notes:
        say(f"Note: {note}")


def score_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the table of scores, without the columns that no row has a value for."""
    filled = [column for column in SCORES if any(row.get(column.key) is not None for row in rows)]
    keys = {column.key for column in filled}
    percent = "acc, ECE, gates below 0.1 (Φ, θ, Φθ)" if "psi" in keys else "acc, ECE"
    nats = "NLL, KL from the truth" if "kl_truth" in keys else "NLL"
    return Table(filled, rows, f"{percent} in %; {nats} in nats")


def show(table: Table) -> None:
    """Print a table, its caption above it on a line of its own, however narrow the table is."""
    if table.caption:
        say(table.caption)
    console.print(rich_table(replace(table, caption="")))


def say(text: str) -> None:
    """Print a line as it is: no markup, not cut at the terminal's width."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)

"""The pruning curve as a table and a figure: `bara prune --curve`."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from bara_pyro.report import Column, Table
from bara_pyro.report.style import PALETTE, dress, legend_of, line_style, new_figure
from bara_pyro.types import Json

COLUMNS = (
    Column("share", "kept", "%", ".0f"),
    Column("parameters", "parameters", format=",d"),
    Column("time", "time", format=".2f"),
    Column("acc", "ACC", "%", ".1f"),
    Column("ece", "ECE", "%", ".1f"),
    Column("nll", "NLL", "nats", ".3f"),
    Column("difference", "max Δp", format=".3f"),
)


def curve_table(rows: Sequence[Json], samples: int) -> Table:
    """Return the pruning curve as a table, with one row for each share of units kept."""
    about = (
        "time: of a prediction with S = 0, 1 for all units; max Δp: largest change of a probability, S = 0"
    )
    caption = f"Most important units kept; scores with S = {samples}; {about}"
    return Table(COLUMNS, rows, caption)


def curve_figure(rows: Sequence[Json]) -> Figure:
    """Plot NLL, ECE and the largest change of a probability against the share of units kept."""
    figure = new_figure(9.0, 3.2)
    shown = (("nll", "NLL (nats)"), ("ece", "ECE (%)"), ("difference", "Largest change of a probability"))
    shares = [row["share"] for row in rows]
    for index, (axes, (key, label)) in enumerate(zip(figure.subplots(1, 3), shown, strict=True)):
        axes.plot(shares, [row[key] for row in rows], marker="o", markersize=4, **line_style(index))
        dress(axes, "Units kept (%)", label)
        axes.set_xlim(103, 0)
        axes.set_ylim(bottom=0)
        axes.axhline(rows[0][key], color=PALETTE[-1], linewidth=0.8, linestyle=":", label="all units")
    legend_of(figure.axes[0], loc="best")
    return figure

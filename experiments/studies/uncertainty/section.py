"""The section on what the uncertainties mean: tables by training rows and task, one figure."""

from collections.abc import Sequence
from operator import itemgetter
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from bara_pyro.report import Column, Table
from bara_pyro.report.style import dress, legend_of, new_figure
from experiments.engine.results import Results, distinct, having
from experiments.page.figures import PAGE, marked
from experiments.page.parts import Part, Picture
from experiments.page.values import display, spread_rows

QUESTION = """\
Each method trained on the first rows of {task} ({steps:,} steps, settings of the search; {seeds}) and asked
{rows} test rows of that task and of the shifted ones. Aleatoric uncertainty should follow the true entropy of
the answers (ρ: Spearman's correlation over rows), epistemic uncertainty should fall with more training rows
and rise under a shift. Nats; of BaRA the epistemic part is that of Φ and that of θ, by {nested} × {nested}
nested draws.
"""

COLUMNS = (
    Column("method", "method"),
    Column("size", "training rows", format=",d"),
    Column("task", "test rows of"),
    Column("acc", "ACC", "%", ".1f"),
    Column("kl", "KL from truth", format=".3f"),
    Column("aleatoric", "aleatoric", format=".3f"),
    Column("bias", "less true entropy", format="+.3f"),
    Column("rho", "ρ", format="+.2f"),
    Column("epistemic", "epistemic", format=".4f"),
    Column("global", "of Φ", format=".4f"),
    Column("local", "of θ", format=".4f"),
)

Entries = Sequence[dict[str, Any]]


def parts(results: Results) -> list[Part]:
    """Return the table and the figure."""
    entries = list(results.entries.values())
    caption = "Epistemic uncertainty (mutual information of answer and latents) against training rows."
    picture = Picture(lambda: size_figure(entries), "uncertainty-rows", caption)
    return [Table(COLUMNS, table_rows(entries)), picture]


def table_rows(entries: Entries) -> list[dict[str, Any]]:
    """Return a row a method, number of training rows and task; means over seeds with their spread."""
    flat = [
        {"method": display(e["method"]), "size": e["size"], "task": task, **numbers}
        for method in distinct(entries, "method")
        for e in sorted(having(entries, method=method), key=itemgetter("size"))
        for task, numbers in e["tasks"].items()
    ]
    return spread_rows(flat, ("method", "size", "task"), [column.key for column in COLUMNS[3:]])


def size_figure(entries: Entries) -> Figure:
    """Draw epistemic uncertainty against the number of training rows: a panel a task, a line a method."""
    tasks, asked = list(entries[0]["tasks"]), sorted(distinct(entries, "size"))
    figure = new_figure(PAGE, 3.0)
    panels = figure.subplots(1, len(tasks), squeeze=False, sharey=True)[0]
    for axes, task in zip(panels, tasks, strict=True):
        for index, method in enumerate(distinct(entries, "method")):
            own = having(entries, method=method)
            sizes = sorted(distinct(own, "size"))
            values = [mean(e["tasks"][task]["epistemic"] for e in having(own, size=n)) for n in sizes]
            axes.plot(sizes, values, label=display(method), **marked(index))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(asked, [f"{n:,}" for n in asked])
        axes.minorticks_off()
        dress(axes, "Training rows", "Epistemic uncertainty (nats)" if axes is panels[0] else "", task)
    legend_of(panels[0], loc="best")
    return figure

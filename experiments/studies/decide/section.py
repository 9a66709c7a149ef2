"""The section on decisions with a promise: a table for each of the three, one figure."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import beta

from bara_pyro.metrics.conformal import allowed
from bara_pyro.report import Column, Table
from bara_pyro.report.style import GREY, INK, dress, legend_of, new_figure
from experiments.engine.results import Results, distinct, having
from experiments.page.figures import PAGE, marked
from experiments.page.parts import Part, Picture
from experiments.page.values import display, spread_rows

QUESTION = """\
Each method trained for {steps:,} steps with the settings of the search (which saw other tasks; {seeds}),
calibrated on the validation rows of its task and asked its test rows, S = {samples}. Coverage and error rates
are of the test rows under the true distribution of their answers (*truth*) and by their drawn answers
(*drawn*). What is promised holds over calibration rows, too: with those at hand the coverage of independent
rows to come lies within the range of the table in `95 %` of the cases. Rows about one resident are not
independent, which makes it wider. Abstention: delta `{delta}`; alarms at alpha `{alpha}`; {rows} rows of each
shifted task.
"""

SETS = (
    Column("method", "method"),
    Column("task", "task"),
    Column("score", "score"),
    Column("promised", "promised", "%", ".0f"),
    Column("range", "range", "%"),
    Column("truth", "coverage, truth", "%", ".1f"),
    Column("drawn", "drawn", "%", ".1f"),
    Column("size", "answers a set", format=".2f"),
    Column("near", "coverage, near", "%", ".1f"),
    Column("far", "far", "%", ".1f"),
)
ABSTENTION = (
    Column("method", "method"),
    Column("task", "task"),
    Column("risk", "risk", "%", ".0f"),
    Column("answered", "answered", "%", ".1f"),
    Column("truth", "errors, truth", "%", ".1f"),
    Column("drawn", "drawn", "%", ".1f"),
)
ALARMS = (
    Column("method", "method"),
    Column("task", "task"),
    Column("by", "by"),
    Column("own", "own rows", "%", ".1f"),
    Column("near", "near", "%", ".1f"),
    Column("far", "far", "%", ".1f"),
)
SHOWN = ("0.05", "0.1", "0.2")
BY = {"total": "entropy", "epistemic": "mutual information", "distance": "distance"}

Entries = Sequence[dict[str, Any]]


def parts(results: Results) -> list[Part]:
    """Return the figure and the tables."""
    entries = list(results.entries.values())
    caption = (
        "Coverage of sets (score lac) under the true distribution of answers, and answers a set, against the "
        "coverage promised. Grey: where it lies in 95 % of the cases if rows are independent."
    )
    return [
        Picture(lambda: coverage_figure(entries), "decide-coverage", caption),
        f"### Sets of answers\n\n{kept(entries)}\n",
        Table(SETS, set_rows(entries)),
        "### Abstention\n\nNothing stands where no share of the rows can be promised the risk.\n",
        Table(ABSTENTION, abstention_rows(entries)),
        "### Rows from elsewhere\n\nRows called foreign: of the task's own these are false alarms. *Aware*: "
        "the predictions have the noise of foreign rows (`--distance-aware`).\n",
        Table(ALARMS, alarm_rows(entries)),
    ]


def distribution_range(rows: int, alpha: float) -> tuple[float, float]:
    """Return where the coverage of independent rows to come lies in 95 % of the cases (percent)."""
    missed = allowed(rows, alpha)
    low, high = beta(rows + 1 - missed, missed).interval(0.95)
    return 100 * float(low), 100 * float(high)


def kept(entries: Entries) -> str:
    """Return a sentence on how many coverages of own rows are in their range, of all runs, scores, levels."""
    inside = [
        low <= found["own"]["expected_coverage"] <= high
        for e in entries
        for by_alpha in e["sets"].values()
        for alpha, found in by_alpha.items()
        for low, high in [distribution_range(e["calibration_rows"], float(alpha))]
    ]
    return f"Of {len(inside)} coverages (runs, scores and levels) {sum(inside)} lie within their range."


def set_rows(entries: Entries) -> list[dict[str, Any]]:
    """Return a row a method, task, score and alpha; means over seeds with their spread."""
    flat = []
    for e in entries:
        for score, by_alpha in e["sets"].items():
            for alpha in SHOWN:
                found = by_alpha[alpha]
                low, high = distribution_range(e["calibration_rows"], float(alpha))
                flat.append(
                    {
                        "method": display(e["method"]),
                        "task": e["task"],
                        "score": score,
                        "promised": 100 * (1 - float(alpha)),
                        "range": f"{low:.1f} to {high:.1f}",
                        "truth": found["own"]["expected_coverage"],
                        "drawn": found["own"]["coverage"],
                        "size": found["own"]["mean_size"],
                        "near": found["micro-near"]["expected_coverage"],
                        "far": found["micro-far"]["expected_coverage"],
                    }
                )
    by = ("method", "task", "score", "promised", "range")
    rows = spread_rows(flat, by, ("truth", "drawn", "size", "near", "far"))
    return sorted(rows, key=lambda row: (row["task"], row["score"] != "lac", -row["promised"]))


def abstention_rows(entries: Entries) -> list[dict[str, Any]]:
    """Return a row a method, task and risk."""
    flat = [
        {
            "method": display(e["method"]),
            "task": e["task"],
            "risk": 100 * float(risk),
            "answered": found.get("answered"),
            "truth": found.get("expected_error_rate"),
            "drawn": found.get("error_rate"),
        }
        for e in entries
        for risk, found in e["abstention"].items()
    ]
    rows = spread_rows(flat, ("method", "task", "risk"), ("answered", "truth", "drawn"))
    return sorted(rows, key=lambda row: (row["task"], row["risk"]))


def alarm_rows(entries: Entries) -> list[dict[str, Any]]:
    """Return a row a method, task and measure; distances, which no method changes, once a task."""
    flat = []
    first = entries[0]["method"]
    for e in entries:
        for kind, measures in e["alarms"].items():
            for by, found in measures.items():
                same = by == "distance"
                if same and e["method"] != first:
                    continue
                flat.append(
                    {
                        "method": "any" if same else display(e["method"]),
                        "task": e["task"],
                        "by": BY[by] if same or kind == "plain" else f"{BY[by]}, aware",
                        "own": found["own"],
                        "near": found["micro-near"],
                        "far": found["micro-far"],
                    }
                )
    rows = spread_rows(flat, ("method", "task", "by"), ("own", "near", "far"))
    return sorted(rows, key=lambda row: (row["task"], row["by"]))


def coverage_figure(entries: Entries) -> Figure:
    """Draw coverage and size against the promise: a column a task, a line a method."""
    tasks = distinct(entries, "task")
    figure = new_figure(PAGE, 4.6)
    panels = figure.subplots(2, len(tasks), squeeze=False, sharex=True, sharey="row")
    for above, below, task in zip(*panels, tasks, strict=True):
        own = having(entries, task=task)
        alphas = [float(alpha) for alpha in own[0]["sets"]["lac"]]
        promised = [100 * (1 - alpha) for alpha in alphas]
        _distribution(above, own[0]["calibration_rows"], alphas)
        for index, method in enumerate(distinct(entries, "method")):
            runs = having(own, method=method)
            for axes, key in ((above, "expected_coverage"), (below, "mean_size")):
                values = [mean(e["sets"]["lac"][str(a)]["own"][key] for e in runs) for a in alphas]
                axes.plot(promised, values, label=display(method), **marked(index))
        dress(above, "", "Coverage (%)" if task == tasks[0] else "", task)
        dress(below, "Coverage promised (%)", "Answers a set" if task == tasks[0] else "")
        below.set_ylim(bottom=0)
    legend_of(panels[0][0], loc="best")
    return figure


def _distribution(axes: Axes, rows: int, alphas: Sequence[float]) -> None:
    """Draw the promise and the distribution of independent rows."""
    promised = [100 * (1 - alpha) for alpha in alphas]
    low, high = zip(*(distribution_range(rows, alpha) for alpha in alphas), strict=True)
    axes.fill_between(promised, low, high, color=GREY, alpha=0.25, linewidth=0)
    axes.plot(promised, promised, color=INK, linewidth=0.9, linestyle="--")

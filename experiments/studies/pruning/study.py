"""How much of the rank can go? LoRA and both forms of BaRA, units dropped by what they add to their layer.

    python -m experiments pruning
    python -m experiments pruning --model FOLDER --tasks arc_challenge --data-dir FOLDER --seeds 1

Uses the runs of the main table where they are there. Importance is measured on training rows, scores on test
rows, along a curve of kept rank (`bara prune` does the same for one run), and the number of units that are
left where no probability of the posterior mean may change by more than a tolerance. A run that has been
pruned is not pruned again.
"""

from argparse import Namespace
from collections.abc import Sequence
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from bara_pyro.data import first_rows
from bara_pyro.diagnostics.gates.prune import prune
from bara_pyro.diagnostics.gates.prune_curve import prune_curve
from bara_pyro.report import Column, Table
from bara_pyro.report.style import dress, legend_of, new_figure
from bara_pyro.runs.system import System
from experiments.engine.arguments import option
from experiments.engine.methods import tagged
from experiments.engine.results import Results, distinct, having
from experiments.page.figures import PAGE, marked
from experiments.page.parts import Part, Picture
from experiments.page.spec import look_study
from experiments.page.tables import spread_table
from experiments.page.values import display, spread_rows

TOLERANCES, SAMPLES = (0.01, 0.05, 0.2), 10
SETUP = """\
A unit is one direction of a module's rank. Units are dropped in the order of what they add to their layer's
output, measured on {calibration} training rows; every module keeps one. Scores are of {rows} test rows, S =
{samples} ({model}, {steps:,} training steps, {seeds}).

- "left at": percent of the units left if no probability of the posterior mean may change by more than that
  on the training rows.
- "time": of S = 0, as a share of the unpruned adapter's.
"""
SHOWN = {"acc": "ACC (%)", "nll": "NLL (nats)", "difference": "Largest change of a probability"}
CURVE = (
    Column("method", "method"),
    Column("share", "kept", "%", ".0f"),
    Column("acc", "ACC", "%", ".1f"),
    Column("ece", "ECE", "%", ".1f"),
    Column("nll", "NLL", "nats", ".3f"),
    Column("difference", "max Δp", format=".3f"),
    Column("parameters", "parameters", format=",.0f"),
    Column("time", "time", format=".2f"),
)

Entries = Sequence[dict[str, Any]]


def look(system: System, args: Namespace) -> dict[str, Any]:
    """Return the number of units, those left at each tolerance, and the curve of `prune_curve`."""
    calibration = first_rows(system.split("train"), args.calibration)
    pruned = {tolerance: prune(system, calibration, tolerance) for tolerance in TOLERANCES}
    return {
        "units": pruned[TOLERANCES[0]].units,
        "kept": {str(tolerance): found.kept for tolerance, found in pruned.items()},
        "curve": prune_curve(
            system, calibration, first_rows(system.split("test"), args.rows), samples=SAMPLES
        ),
    }


def parts(results: Results) -> list[Part]:
    """Return the tables and the figure."""
    entries = list(results.entries.values())
    caption = "Scores against the share of units kept, means over tasks and seeds; all units at the left."
    curve = spread_table(
        _points(entries), CURVE, ("method", "point", "share"), "Along the curve of kept rank, mean over tasks"
    )
    return [tolerance_table(entries), curve, Picture(lambda: curve_figure(entries), "pruning", caption)]


def tolerance_table(entries: Entries) -> Table:
    """Return the percentage of units left at each tolerance: a row a method and task."""
    flat = [
        {"method": display(e["method"]), "task": e["task"]}
        | {t: 100 * kept / e["units"] for t, kept in e["kept"].items()}
        for method in distinct(entries, "method")
        for e in having(entries, method=method)
    ]
    columns = [Column("method", "method"), Column("task", "task")]
    columns += [Column(t, f"left at {t}", "%", ".1f") for t in entries[0]["kept"]]
    caption = "Units left, by the largest change of a probability that is allowed"
    return spread_table(flat, columns, ("method", "task"), caption)


def curve_figure(entries: Entries) -> Figure:
    """Draw accuracy, NLL and the largest change of a probability against the share of units kept."""
    figure = new_figure(PAGE, 1.8 * len(SHOWN) + 0.3)
    points = _points(entries)
    for axes, (key, label) in zip(figure.subplots(len(SHOWN), 1, sharex=True), SHOWN.items(), strict=True):
        for index, method in enumerate(distinct(points, "method")):
            rows = spread_rows(having(points, method=method), ("point", "share"), [key])
            values = [value[0] if isinstance(value := row[key], tuple) else value for row in rows]
            axes.plot([row["share"] for row in rows], values, label=method, **marked(index))
        dress(axes, "", label)
    figure.axes[-1].set(xlabel="Units kept (%)", xlim=(103, 0))
    legend_of(figure.axes[0], loc="best")
    return figure


def _points(entries: Entries) -> list[dict[str, Any]]:
    """Return the points of the curves, each number the mean over tasks, one a method, point and seed."""
    found = []
    for method in distinct(entries, "method"):
        own = having(entries, method=method)
        for point in range(len(own[0]["curve"])):
            share = mean(e["curve"][point]["share"] for e in own)
            for seed in distinct(own, "seed"):
                curves = [e["curve"][point] for e in having(own, seed=seed)]
                numbers = {key: mean(c[key] for c in curves) for key in curves[0]}
                found.append(numbers | {"method": display(method), "point": point, "share": share})
    return found


STUDY = look_study(
    "pruning",
    __doc__,
    "Can sparse gates be pruned?",
    SETUP,
    look,
    parts,
    methods=tagged("reference", "ours"),
    tasks=("micro-wgs", "micro-arcc"),
    options={
        "--rows": option(400, "test rows to score"),
        "--calibration": option(256, "training rows for importance"),
    },
    kept=("rows", "calibration"),
    constants={"samples": SAMPLES},
    by_hash=True,
)

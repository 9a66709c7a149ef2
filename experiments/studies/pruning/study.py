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
from experiments.engine.arguments import experiment_parser, positive
from experiments.engine.methods import tagged
from experiments.engine.results import Results, distinct, having
from experiments.engine.run import about_runs, read_off
from experiments.engine.search import chosen_job
from experiments.page.figures import PAGE, marked
from experiments.page.parts import Part, Picture
from experiments.page.spec import entry_study
from experiments.page.values import display, spread_rows

QUESTION = """\
Units (a direction of a module's rank) dropped in the order of what they add to their layer's output, measured
on {calibration} training rows; every module keeps one. Scores on {rows} test rows, S = {samples} ({model},
{steps:,} training steps, {seeds}). "left at": percent of the units that are left when no probability of the
posterior mean may change by more than that on the training rows. "time": of S = 0 as a share of the whole's.
"""
SHOWN = {"acc": "ACC (%)", "nll": "NLL (nats)", "difference": "Largest change of a probability"}

Entries = Sequence[dict[str, Any]]


def parts(results: Results) -> list[Part]:
    """Return the tables and the figure."""
    entries = list(results.entries.values())
    caption = "Scores against the share of units kept, means over tasks and seeds; all units at the left."
    picture = Picture(lambda: curve_figure(entries), "pruning", caption)
    return [tolerance_table(entries), curve_table(entries), picture]


def tolerance_table(entries: Entries) -> Table:
    """Return the percentage of units left at each tolerance: a row a method and task."""
    tolerances = list(entries[0]["kept"])
    flat = [
        {"method": display(e["method"]), "task": e["task"]}
        | {t: 100 * kept / e["units"] for t, kept in e["kept"].items()}
        for method in distinct(entries, "method")
        for e in having(entries, method=method)
    ]
    rows = spread_rows(flat, ("method", "task"), tolerances)
    columns = [Column("method", "method"), Column("task", "task")]
    columns += [Column(t, f"left at {t}", "%", ".1f") for t in tolerances]
    return Table(columns, rows, "Units left, by the largest change of a probability that is allowed")


def curve_table(entries: Entries) -> Table:
    """Return scores along the curve, means over tasks: a row a method and share."""
    columns = (
        Column("method", "method"),
        Column("share", "kept", "%", ".0f"),
        Column("acc", "ACC", "%", ".1f"),
        Column("ece", "ECE", "%", ".1f"),
        Column("nll", "NLL", "nats", ".3f"),
        Column("difference", "max Δp", format=".3f"),
        Column("parameters", "parameters", format=",.0f"),
        Column("time", "time", format=".2f"),
    )
    keys = [column.key for column in columns[2:]]
    rows = spread_rows(_points(entries), ("method", "point", "share"), keys)
    return Table(columns, rows, "Along the curve of kept rank, mean over tasks")


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


TASKS = ("micro-wgs", "micro-arcc")
TOLERANCES = (0.01, 0.05, 0.2)
SAMPLES = 10


def look(system: System, args: Namespace) -> dict[str, Any]:
    """Return what pruning does to a fitted system.

    Returns:
        `units`: how many there are; `kept`: tolerance -> how many are left; `curve`: the rows of
        `bara_pyro.diagnostics.gates.prune_curve.prune_curve`.
    """
    calibration = first_rows(system.split("train"), args.calibration)
    test = first_rows(system.split("test"), args.rows)
    pruned = {tolerance: prune(system, calibration, tolerance) for tolerance in TOLERANCES}
    return {
        "units": pruned[TOLERANCES[0]].units,
        "kept": {str(tolerance): found.kept for tolerance, found in pruned.items()},
        "curve": prune_curve(system, calibration, test, samples=SAMPLES),
    }


def main() -> None:
    """Train what is missing, prune what has not been, write after each."""
    parser = experiment_parser(__doc__, runs="runs/study", methods=tagged("reference", "ours"), tasks=TASKS)
    add = parser.add_argument
    add("--rows", type=positive, default=400, help="test rows to score; default: %(default)s")
    add("--calibration", type=positive, default=256,
        help="training rows for importance; default: %(default)s")  # fmt: skip
    args = parser.parse_args()
    jobs = {
        (method, task, seed): chosen_job(args, method, task, seed)
        for seed in range(args.seeds)
        for task in args.tasks
        for method in args.methods
    }
    about = about_runs(args, "rows", "calibration", samples=SAMPLES)
    read_off("pruning", jobs, ("method", "task", "seed"), look, about, args, by_hash=True)


STUDY = entry_study("Pruning", QUESTION, main, parts, order=21)

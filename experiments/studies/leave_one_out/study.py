"""Methods ranked by PSIS-LOO on training rows, beside what unseen rows say of the same runs.

    python -m experiments leave_one_out

PSIS-LOO needs no held-out rows: does it tell which method predicts best? It re-weights draws, so it needs a
method with some spread, and it cannot take a row back out of weights that are points
(`bara_pyro.diagnostics.arviz.loo`). Uses the runs of the main table where they are there; a comparison that
is in the results is not made again.
"""

from argparse import Namespace
from collections.abc import Sequence
from itertools import product
from statistics import mean
from typing import Any

from matplotlib.figure import Figure
from scipy.stats import spearmanr

from bara_pyro.cli.terminal import progress, say
from bara_pyro.diagnostics.arviz.compat import inference_groups
from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
from bara_pyro.diagnostics.arviz.loo import compare
from bara_pyro.errors import TrainingError
from bara_pyro.report import Column, Table
from bara_pyro.report.style import GREY, PALETTE, dress, new_figure
from bara_pyro.runs.folder import load_system
from experiments.engine.arguments import experiment_parser, option
from experiments.engine.methods import tagged
from experiments.engine.record import Record
from experiments.engine.results import Results, distinct, having, resumed
from experiments.engine.run import about_runs
from experiments.engine.sweep import finished_runs
from experiments.page.figures import PAGE, legend_below
from experiments.page.parts import Part, Picture
from experiments.page.spec import entry_study, jobs_of
from experiments.page.values import display, spread_rows

Entries = Sequence[dict[str, Any]]


def ranked(records: dict[str, Record], args: Namespace) -> list[dict[str, Any]]:
    """Return the rows of the comparison of one task and seed, best first.

    They are those of `bara_pyro.diagnostics.arviz.loo.compare`, its nats as means over the training rows
    looked at, and `unseen`: the mean log probability of the test rows under S = 10 (nats).
    """
    data = {
        method: to_inference_data(
            load_system(args.runs / record["config_hash"]),
            split="train",
            rows=args.rows,
            samples=args.samples,
            prior=False,
        )
        for method, record in records.items()
    }
    n = inference_groups(next(iter(data.values())))["log_likelihood"].sizes["obs"]
    means = ("elpd", "se", "difference", "difference_se")
    return [
        vars(row)
        | {key: getattr(row, key) / n for key in means}
        | {"rows": n, "unseen": -records[row.method]["metrics"]["10"]["nll"]}
        for row in compare(data)
    ]


def main() -> None:
    """Train what is missing, rank what has not been ranked, write after each task and seed."""
    tasks = ("micro-wgs", "micro-arcc")
    parser = experiment_parser(__doc__, runs="runs/study", methods=tagged("spread"), tasks=tasks)
    parser.add_argument("--rows", **option(128, "training rows to leave out"))
    parser.add_argument("--samples", **option(100, "posterior draws"))
    args = parser.parse_args()
    records = finished_runs(jobs_of(args), args)
    results = resumed("leave_one_out", args.out, about_runs(args, "rows", "samples", "methods"))
    places = list(product(args.tasks, range(args.seeds)))
    with progress("leave one out", len(places)) as advance:
        for task, seed in places:
            own = {m: r for (m, t, s), r in records.items() if (t, s) == (task, seed)}
            if len(own) < 2:
                raise TrainingError(
                    f"Fewer than two runs on {task} with seed {seed}: see the failures above."
                )
            if f"{task} {seed}" not in results.entries:
                results.add(f"{task} {seed}", {"task": task, "seed": seed, "rows": ranked(own, args)})
            advance(1)
    say(f"{len(places)} comparisons are in {results.path}: python -m experiments report --out {args.out}")


# The page --------------------------------------------------------------------------------------------------

SETUP = """\
Methods with some spread, ranked by PSIS-LOO on training rows ({samples} draws; {model}, {steps:,} training
steps, {seeds}), and the log probability of the test rows under the same runs. Values are means over rows in
nats; higher is better. "too hopeful": LOO minus unseen rows, which is what the point weights (A, B and the
amortiser) have memorised. "high k": rows whose Pareto k is above the limit, in percent. "weight": of
stacking.
"""

COLUMNS = (
    Column("method", "method"),
    Column("elpd", "PSIS-LOO", format=".3f", best="max"),
    Column("difference", "behind the best", format=".3f"),
    Column("difference_se", "its error", format=".3f"),
    Column("unseen", "unseen rows", format=".3f", best="max"),
    Column("hope", "too hopeful", format="+.3f"),
    Column("high", "high k", "%", ".1f"),
    Column("weight", "weight", format=".2f"),
)


def parts(results: Results) -> list[Part]:
    """Return a table a task and the figure."""
    entries = list(results.entries.values())
    tables = [task_table(task, entries) for task in distinct(entries, "task")]
    caption = "PSIS-LOO on training rows against unseen rows, a point a method and seed; dotted: equal."
    return [*tables, Picture(lambda: loo_figure(entries), "leave-one-out", caption)]


def rows_of(task: str, entries: Entries) -> list[dict[str, Any]]:
    """Return the rows of one task, all seeds, the methods that are best on average first."""
    found = [
        {**row, "hope": row["elpd"] - row["unseen"], "high": 100 * row["unreliable"] / row["rows"]}
        for entry in having(entries, task=task)
        for row in entry["rows"]
    ]
    order = {m: -mean(row["elpd"] for row in having(found, method=m)) for m in distinct(found, "method")}
    return sorted(found, key=lambda row: order[row["method"]])


def task_table(task: str, entries: Entries) -> Table:
    """Return a row a method of one task; means over seeds with their spread."""
    found = rows_of(task, entries)
    rows = spread_rows(found, ["method"], [column.key for column in COLUMNS[1:]])
    shown = [{**row, "method": display(row["method"])} for row in rows]
    said = f"{found[0]['rows']} training rows; Spearman's ρ of both columns {agreement(found):+.2f}"
    return Table(COLUMNS, shown, f"{task}, {said}")


def agreement(found: Entries) -> float:
    """Return the rank correlation of PSIS-LOO and unseen rows over the methods, means over seeds."""
    methods = [having(found, method=method) for method in distinct(found, "method")]
    seen, unseen = ([mean(row[key] for row in own) for own in methods] for key in ("elpd", "unseen"))
    return float(spearmanr(seen, unseen).statistic)


def loo_figure(entries: Entries) -> Figure:
    """Draw PSIS-LOO against unseen rows: a panel a task, a marker a method."""
    tasks = distinct(entries, "task")
    figure = new_figure(PAGE, 3.4)
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        found = rows_of(task, entries)
        for index, method in enumerate(sorted(distinct(found, "method"))):
            look: dict[str, Any] = {"color": PALETTE[index % len(PALETTE)], "marker": "osD^vP*X"[index % 8]}
            own = having(found, method=method)
            x, y = ([row[key] for row in own] for key in ("elpd", "unseen"))
            axes.plot(x, y, linestyle="", markersize=6, label=display(method), **look)
        ends = [*axes.get_xlim(), *axes.get_ylim()]
        axes.plot([min(ends), max(ends)], [min(ends), max(ends)], ":", color=GREY, linewidth=1.0)
        dress(axes, "PSIS-LOO (nats)", "Unseen rows (nats)", task)
    legend_below(figure)
    return figure


STUDY = entry_study("Can PSIS-LOO on training rows choose a method?", SETUP, main, parts)

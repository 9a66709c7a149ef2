"""Do sets, abstention and alarms keep what they promise, and what does the promise cost, method by method?

    python -m experiments decide

Trains each method, calibrates on the validation rows of its task as `bara conformal`, `bara abstain` and
`bara detect` do, and looks at the test rows: coverage and error rates under the true distribution of answers,
which the microworld knows, sizes of sets, shares of rows answered, alarms on the task's own rows (false ones)
and on rows of shifted tasks. One training serves with and without the noise of foreign rows
(`--distance-aware`), which changes predictions alone: sets and abstention are without it.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import beta

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics import accuracy
from bara_pyro.metrics.conformal import allowed
from bara_pyro.report import Column, Table
from bara_pyro.report.style import GREY, INK, dress, legend_of, new_figure
from bara_pyro.runs.asked import ScoredRows, ask
from bara_pyro.runs.decide import decide_abstention, decide_detection, decide_sets
from bara_pyro.runs.system import System
from bara_pyro.types import Measure, SetScore
from experiments.engine.arguments import option
from experiments.engine.record import on_task
from experiments.engine.results import Results, distinct, having
from experiments.page.figures import PAGE, marked
from experiments.page.parts import Folded, Part, Picture
from experiments.page.spec import jobs_of, look_study
from experiments.page.tables import sorted_by, spread_table
from experiments.page.values import display

SHIFTED = ("micro-near", "micro-far")
SCORES: tuple[SetScore, ...] = ("lac", "aps")
ALPHAS = (0.05, 0.1, 0.15, 0.2, 0.3)
RISKS, DELTA = (0.1, 0.2, 0.3), 0.05
FALSE_ALARMS = 0.05
MEASURES: tuple[Measure, ...] = ("total", "epistemic", "distance")
OWN = "own"

Rows = Mapping[str, ScoredRows]
Entries = Sequence[dict[str, Any]]


def look(system: System, args: Namespace) -> dict[str, Any]:
    """Return all that is known of one fitted system; its noise of foreign rows is switched off in between."""
    known, others = asked_rows(system, args.rows, args.samples)
    aware = alarms_of(system, known, others, MEASURES)
    distance = system.corrections.distance
    if distance is None:
        raise ConfigError("This system is not distance-aware: make it with adapter.distance_aware=true.")
    distance.scale.zero_()
    known, others = asked_rows(system, args.rows, args.samples)
    own = others[OWN]
    return {
        "calibration_rows": len(known.examples),
        "test_rows": len(own.examples),
        "acc": accuracy(own.log_probs, own.labels),
        "sets": sets_of(system, known, others),
        "abstention": abstention_of(system, known, own),
        "alarms": {"plain": alarms_of(system, known, others, MEASURES[:2]), "aware": aware},
    }


def asked_rows(system: System, rows: int, samples: int) -> tuple[ScoredRows, dict[str, ScoredRows]]:
    """Return a system's validation rows; its test rows and the first `rows` of the shifted tasks by name."""
    shifted = {name: on_task(system, name).task.test[:rows] for name in SHIFTED}
    others = {OWN: system.task.test, **shifted}
    known = ask(system, system.task.validation, "validation", samples=samples)
    return known, {name: ask(system, own, name, samples=samples) for name, own in others.items()}


def sets_of(system: System, known: ScoredRows, others: Rows) -> dict[str, Any]:
    """Return coverage (percent) and mean size of sets, by score, alpha and task."""

    def numbers(asked: ScoredRows, alpha: float, score: SetScore) -> dict[str, float]:
        summary = decide_sets(known, asked, system.task, alpha=alpha, score=score).summary
        return {key: summary[key] for key in ("mean_size", "coverage", "expected_coverage")}

    return {
        score: {
            str(alpha): {name: numbers(asked, alpha, score) for name, asked in others.items()}
            for alpha in ALPHAS
        }
        for score in SCORES
    }


def abstention_of(system: System, known: ScoredRows, asked: ScoredRows) -> dict[str, Any]:
    """Return by risk the share of test rows that is answered and their error rate (percent), or a refusal."""
    found: dict[str, Any] = {}
    for risk in RISKS:
        try:
            decided = decide_abstention(known, asked, system.task, risk=risk, delta=DELTA)
        except DataError as error:
            found[str(risk)] = {"refused": str(error)}
            continue
        summary = decided.summary
        found[str(risk)] = {
            "answered": 100 * summary["answered"] / summary["rows"],
            "error_rate": summary["error_rate"],
            "expected_error_rate": summary["expected_error_rate"],
            "bound": 100 * decided.rule.bound,
        }
    return found


def alarms_of(
    system: System, known: ScoredRows, others: Rows, measures: tuple[Measure, ...]
) -> dict[str, Any]:
    """Return by measure the share of rows of each task that is called foreign (percent)."""
    found: dict[str, Any] = {}
    for by in measures:
        try:
            decided = {
                name: decide_detection(system, known, asked, alpha=FALSE_ALARMS, by=by).summary
                for name, asked in others.items()
            }
        except ConfigError:  # draws that do not differ tell nothing
            continue
        found[by] = {name: 100 * s["foreign"] / s["rows"] for name, s in decided.items()}
    return found


# The page --------------------------------------------------------------------------------------------------

SETUP = """\
Each method trained for {steps:,} steps with the settings of the search, which saw other tasks ({seeds}). It
was calibrated on the validation rows of its task and scored on the test rows, S = {samples}. Coverage and
error rates are under the true distribution of the answers (*truth*) and by their drawn answers (*drawn*).

The promise also holds over calibration rows: with those at hand, the coverage of independent rows lies
within the range of the table in `95 %` of the cases. Rows about one resident are dependent, which widens
it. Abstention: delta `{delta}`; alarms at alpha `{alpha}`; {rows} rows of each shifted task.
"""
NAMED = (Column("method", "method"), Column("task", "task"))
SETS = (
    *NAMED,
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
    *NAMED,
    Column("risk", "risk", "%", ".0f"),
    Column("answered", "answered", "%", ".1f"),
    Column("truth", "errors, truth", "%", ".1f"),
    Column("drawn", "drawn", "%", ".1f"),
)
ALARMS = (
    *NAMED,
    Column("by", "by"),
    Column("own", "own rows", "%", ".1f"),
    Column("near", "near", "%", ".1f"),
    Column("far", "far", "%", ".1f"),
)
SHOWN = ("0.05", "0.1", "0.2")
BY = {"total": "entropy", "epistemic": "mutual information", "distance": "distance"}


def parts(results: Results) -> list[Part]:
    """Return the figure and the tables."""
    entries = list(results.entries.values())
    caption = (
        "Coverage of sets (score lac) under the true distribution of answers, and answers a set, against the "
        "coverage promised. Grey: where it lies in 95 % of the cases if rows are independent."
    )
    return [
        Picture(lambda: coverage_figure(entries), "decide-coverage", caption),
        set_table(entries),
        f"{kept(entries)}\n",
        Folded(
            "Abstention and alarms",
            [
                replace(abstention_table(entries), caption="Abstention; – if the risk cannot be promised"),
                replace(
                    alarm_table(entries),
                    caption="Rows that raise an alarm, in percent; false on the task's own rows; aware: "
                    "with the noise of distance awareness",
                ),
            ],
        ),
    ]


def distribution_range(rows: int, alpha: float) -> tuple[float, float]:
    """Return where the coverage of independent rows to come lies in 95 % of the cases (percent)."""
    missed = allowed(rows, alpha)
    low, high = beta(rows + 1 - missed, missed).interval(0.95)
    return 100 * float(low), 100 * float(high)


def kept(entries: Entries) -> str:
    """Return a sentence on how many coverages of own rows are in their range, of all runs, scores, levels."""
    inside = [
        low <= found[OWN]["expected_coverage"] <= high
        for e in entries
        for by_alpha in e["sets"].values()
        for alpha, found in by_alpha.items()
        for low, high in [distribution_range(e["calibration_rows"], float(alpha))]
    ]
    return f"{sum(inside)} of {len(inside)} coverages (runs, scores and levels) lie within their range."


def set_table(entries: Entries) -> Table:
    """Return a row a method, task, score and alpha; means over seeds with their spread."""
    flat = [
        {
            "method": display(e["method"]),
            "task": e["task"],
            "score": score,
            "promised": 100 * (1 - float(alpha)),
            "range": "{:.1f} to {:.1f}".format(*distribution_range(e["calibration_rows"], float(alpha))),
            "truth": found[OWN]["expected_coverage"],
            "drawn": found[OWN]["coverage"],
            "size": found[OWN]["mean_size"],
            "near": found["micro-near"]["expected_coverage"],
            "far": found["micro-far"]["expected_coverage"],
        }
        for e in entries
        for score, by_alpha in e["sets"].items()
        for alpha, found in ((alpha, by_alpha[alpha]) for alpha in SHOWN)
    ]
    table = spread_table(flat, SETS, ("method", "task", "score", "promised", "range"))
    return sorted_by(table, lambda row: (row["task"], row["score"] != "lac", -row["promised"]))


def abstention_table(entries: Entries) -> Table:
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
    table = spread_table(flat, ABSTENTION, ("method", "task", "risk"))
    return sorted_by(table, lambda row: (row["task"], row["risk"]))


def alarm_table(entries: Entries) -> Table:
    """Return a row a method, task and measure; distances, which no method changes, once a task."""
    flat = [
        {
            "method": "any" if by == "distance" else display(e["method"]),
            "task": e["task"],
            "by": BY[by] if by == "distance" or kind == "plain" else f"{BY[by]}, aware",
            "own": found[OWN],
            "near": found["micro-near"],
            "far": found["micro-far"],
        }
        for e in entries
        for kind, measures in e["alarms"].items()
        for by, found in measures.items()
        if by != "distance" or e["method"] == entries[0]["method"]
    ]
    table = spread_table(flat, ALARMS, ("method", "task", "by"))
    return sorted_by(table, lambda row: (row["task"], row["by"]))


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
                values = [mean(e["sets"]["lac"][str(a)][OWN][key] for e in runs) for a in alphas]
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


STUDY = look_study(
    "decide",
    __doc__,
    "Do prediction sets, abstention and alarms keep their promises?",
    SETUP,
    look,
    parts,
    jobs=lambda args: jobs_of(args, {"adapter.distance_aware": True}),
    runs="runs/decide",
    methods=("lora", "ensemble", "bara-gate"),
    tasks=("micro-arcc", "micro-obqa"),
    seeds=1,
    options={
        "--samples": option(10, "posterior draws S"),
        "--rows": option(500, "rows of each shifted task"),
    },
    kept=("samples", "rows"),
    constants={"delta": DELTA, "alpha": FALSE_ALARMS},
)

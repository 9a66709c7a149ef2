"""The pruning curve: scores, parameters and time by share of units kept, as a table and as a figure."""

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from matplotlib.figure import Figure

from bara_pyro.core.prediction import predict
from bara_pyro.data import EncodedSplit
from bara_pyro.diagnostics.gates.prune import unit_importance, weakest, without
from bara_pyro.errors import ConfigError
from bara_pyro.metrics import evaluate, posterior_predictive
from bara_pyro.report import Column, Table
from bara_pyro.report.style import PALETTE, dress, legend_of, line_style, new_figure
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.system import System, count_parameters
from bara_pyro.types import Json

SHARES = (1.0, 0.9, 0.75, 0.6, 0.45, 0.3, 0.15)
REPEATS = 5  # timings of each system, alternating
TIMED_ROWS = 64
COLUMNS = (
    Column("share", "kept", "%", ".0f"),
    Column("parameters", "parameters", format=",d"),
    Column("time", "time", format=".2f"),
    Column("acc", "ACC", "%", ".1f"),
    Column("ece", "ECE", "%", ".1f"),
    Column("nll", "NLL", "nats", ".3f"),
    Column("difference", "max Δp", format=".3f"),
)


def prune_curve(
    system: System,
    calibration: EncodedSplit,
    test: EncodedSplit,
    *,
    shares: Sequence[float] = SHARES,
    samples: int = 10,
    on_point: Callable[[int], None] | None = None,
) -> list[Json]:
    """Return scores, parameters and time of a fitted BaRA or LoRA run at several shares of units kept.

    The importance of units is measured on the calibration rows, the scores on the test rows with `samples`
    draws. The most important units are kept, at least one in every module. `on_point` is called with 1 after
    each share.

    Returns:
        A row for each share, with

        - `share`: percentage of units kept, after rounding;
        - `parameters`: number of parameters;
        - `time`: time of a prediction at the posterior mean, relative to the whole system;
        - the scores of `bara_pyro.metrics.evaluate`;
        - `difference`: the largest change of a class probability at the posterior mean.

    Raises:
        ConfigError: a share is not between 0 and 1, or the run cannot be pruned
            (see `bara_pyro.diagnostics.gates.prune.prune`).
    """
    if not shares or min(shares) < 0 or max(shares) > 1:
        raise ConfigError(f"The shares of units are {tuple(shares)}: give numbers between 0 and 1.")
    importance = unit_importance(system, calibration)
    units = sum(map(len, importance.values()))
    before = draw(system, test, 0).exp()
    labels = torch.tensor(test.labels)
    rows = []
    for share in shares:
        keep = weakest(importance, round((1 - share) * units))
        smaller = without(system, keep)
        after = draw(smaller, test, 0).exp()
        rows.append(
            {
                "share": 100 * sum(int(chosen.sum()) for chosen in keep.values()) / units,
                "parameters": count_parameters(smaller.model) + count_parameters(smaller.guide),
                "time": _relative_time(smaller, system, test),
                **evaluate(posterior_predictive(draw(smaller, test, samples)), labels),
                "difference": float((after - before).abs().max()),
            }
        )
        if on_point is not None:
            on_point(1)
    return rows


def _relative_time(smaller: System, whole: System, rows: EncodedSplit) -> float:
    """Return the ratio of the median times of a prediction, measured alternately."""
    few = rows.batch(range(min(TIMED_ROWS, len(rows))), whole.answer_ids).to(whole.backbone.device)
    seconds: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(REPEATS):
        for which, system in enumerate((smaller, whole)):
            started = time.perf_counter()
            predict(system.model, system.guide, few, samples=0)
            seconds[which].append(time.perf_counter() - started)
    return median(seconds[0]) / median(seconds[1])


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

"""The pruning curve: scores, parameters and time by share of units kept."""

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

from bara_pyro.core.prediction import predict
from bara_pyro.data import EncodedSplit
from bara_pyro.diagnostics.gates.prune import unit_importance, weakest, without
from bara_pyro.errors import ConfigError
from bara_pyro.metrics import evaluate, posterior_predictive
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.system import System, count_parameters
from bara_pyro.types import Json

SHARES = (1.0, 0.9, 0.75, 0.6, 0.45, 0.3, 0.15)
REPEATS = 5  # timings of each system, alternating
TIMED_ROWS = 64


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

"""Whether an arm is better than a reference, or was lucky with its test rows: a paired bootstrap.

What is compared is the difference arm - reference of each score, averaged over seeds: seed 0 of the one with
seed 0 of the other and so on. The test rows of a task are drawn anew, the same drawn rows for every arm and
seed, because all of them answered the same questions: drawing them apart would count the difficulty of the
rows several times. Where tasks are averaged, each keeps its weight and has its rows drawn on its own. The
interval therefore speaks of other rows like these, for the models that were trained. It does not speak of
training again: three seeds are too few to draw seeds from. Their spread stands beside it (`seed_sd`, the
standard deviation of the difference over seeds, and `agree`, how many seeds have the sign of the mean).

Intervals are the quantiles of the resampled differences, moved so that their mean is the observed difference.
Accuracy, NLL and Brier score are means over rows, for which this changes nothing but the noise of the
resampling. An ECE grows when rows are drawn twice, most for a well calibrated arm; that does not average out
over tasks as the width does, so that plain quantiles can leave out the very difference they belong to. In
simulations (300 and 1200 rows, three seeds) the moved ones held the expected difference of two ECEs of so
many rows in 90 to 98 % of the cases and differed from zero for 2 % of the pairs without a difference.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bara_pyro.errors import DataError
from bara_pyro.metrics.bootstrap import PER_ROW, plain_scores, resampled_scores

METRICS = ("acc", "ece", "nll", "brier")
HIGHER_IS_BETTER = frozenset({"acc"})
AVERAGE = "average"
RESAMPLES, LEVEL = 2000, 0.95
DIGITS = 6  # of what is kept: points and nats far below what any interval resolves

Run = tuple[Tensor, dict[int, Tensor]]
"""Labels (`n`) and log-probabilities by S (`n x C`), as `record.load_predictions` gives them."""
Predictions = Mapping[str, Mapping[str, Mapping[int, Run]]]
"""Task -> arm -> seed -> run."""


def compare(
    predictions: Predictions,
    references: Sequence[str],
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Compare every arm with each reference, on each task and on average.

    Predictions are those of the largest S. An arm that lacks a task of the reference has no average.

    Args:
        predictions: task -> arm -> seed -> labels and log-probabilities by S.
        references: arms to compare the others with.
        resamples: number of bootstrap samples.
        level: of the intervals.
        seed: the same seed gives the same intervals; each task draws its rows by its own name.

    Returns:
        One entry an arm, reference and task: `arm`, `reference`, `task` (`AVERAGE` for the average), `seeds`
        (those compared), `level`, `resamples` and per metric of `METRICS` (`acc`, `ece` in points, `nll` in
        nats, `brier` 0 to 2) `difference`, `low`, `high`, `seed_sd` (None for one seed), `agree` and
        `verdict`: "better", "worse", or "equal" where the interval covers zero. Where a score is infinite
        there is no interval, and numbers are None.

    Raises:
        DataError: a reference has no runs, runs of one task were not scored on the same rows, or were not
            predicted with the same S.
    """
    scored = {task: _score(task, arms, resamples, seed) for task, arms in predictions.items()}
    entries = []
    for reference in references:
        if not any(reference in arms for arms in predictions.values()):
            raise DataError(f"The reference {reference!r} has no runs: choose an arm of the experiment.")
        arms = dict.fromkeys(arm for found in predictions.values() for arm in found if arm != reference)
        for arm in arms:
            differences = {
                task: scores.difference(arm, reference)
                for task, scores in scored.items()
                if scores.shared_seeds(arm, reference)
            }
            if len(scored) > 1 and len(differences) == len(scored):
                differences[AVERAGE] = _average(list(differences.values()))
            about = {"arm": arm, "reference": reference}
            entries += [
                {**about, "task": task, **_entry(difference, level)}
                for task, difference in differences.items()
            ]
    return entries


@dataclass(frozen=True)
class Difference:
    """Arm - reference, all metrics.

    Attributes:
        by_seed: seed -> `metrics`: on the rows themselves.
        mean: `metrics`: the mean over seeds.
        drawn: `resamples x metrics`: the mean over seeds, on drawn rows.
    """

    by_seed: dict[int, Tensor]
    mean: Tensor
    drawn: Tensor


@dataclass(frozen=True)
class Scores:
    """The scores of all runs on one task.

    Attributes:
        place: arm and seed -> index of the run.
        plain: `runs x metrics`: on the rows themselves.
        drawn: `resamples x runs x metrics`: on drawn rows, the same for all runs.
    """

    place: dict[tuple[str, int], int]
    plain: Tensor
    drawn: Tensor

    def shared_seeds(self, arm: str, reference: str) -> list[int]:
        """Return the seeds that both have."""
        return sorted(seed for a, seed in self.place if a == arm and (reference, seed) in self.place)

    def difference(self, arm: str, reference: str) -> Difference:
        """Return arm - reference over the seeds that both have."""
        seeds = self.shared_seeds(arm, reference)
        ours, theirs = ([self.place[name, seed] for seed in seeds] for name in (arm, reference))
        by_seed = self.plain[ours] - self.plain[theirs]
        drawn = self.drawn[:, ours].mean(dim=1) - self.drawn[:, theirs].mean(dim=1)
        return Difference(dict(zip(seeds, by_seed, strict=True)), by_seed.mean(dim=0), drawn)


def _score(task: str, arms: Mapping[str, Mapping[int, Run]], resamples: int, seed: int) -> Scores:
    runs = {(arm, number): run for arm, seeds in arms.items() for number, run in seeds.items()}
    labels, samples = _same_rows(task, runs)
    columns = [PER_ROW[metric](run[1][samples], labels) for run in runs.values() for metric in METRICS]
    infinite = torch.tensor([bool(torch.isinf(column).any()) for column in columns])
    usable = [column.nan_to_num(posinf=0.0) for column in columns]
    # Its own stream for each task: rows of two tasks of one size must not be drawn alike.
    rng = np.random.default_rng([seed, zlib.crc32(task.encode())])
    shape = (len(runs), len(METRICS))
    plain = plain_scores(usable).masked_fill(infinite, math.inf).view(shape)
    drawn = resampled_scores(usable, resamples, rng).masked_fill(infinite, math.inf).view(-1, *shape)
    return Scores({place: i for i, place in enumerate(runs)}, plain, drawn)


def _same_rows(task: str, runs: Mapping[tuple[str, int], Run]) -> tuple[Tensor, int]:
    """Return the labels and the largest S that all runs share."""
    (first, (labels, predicted)), *others = runs.items()
    samples = max(predicted)
    for place, (other_labels, other) in others:
        if not torch.equal(labels, other_labels) or other[max(other)].shape != predicted[samples].shape:
            raise DataError(
                f"{_named(place)} and {_named(first)} were not scored on the same rows of {task}: "
                "evaluate both with the same version and settings of the task."
            )
        if max(other) != samples:
            raise DataError(
                f"{_named(place)} was predicted with S = {max(other)} and {_named(first)} with S = {samples} "
                f"on {task}: give both the same predict.samples."
            )
    return labels, samples


def _named(place: tuple[str, int]) -> str:
    return f"{place[0]} (seed {place[1]})"


def _average(differences: Sequence[Difference]) -> Difference:
    """Return the mean over tasks; by seed over those that all tasks have."""
    shared = set.intersection(*(set(d.by_seed) for d in differences))
    return Difference(
        {seed: torch.stack([d.by_seed[seed] for d in differences]).mean(dim=0) for seed in sorted(shared)},
        torch.stack([d.mean for d in differences]).mean(dim=0),
        torch.stack([d.drawn for d in differences]).mean(dim=0),
    )


def _entry(difference: Difference, level: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seeds": list(difference.by_seed),
        "level": level,
        "resamples": len(difference.drawn),
    }
    for i, metric in enumerate(METRICS):
        by_seed = [float(values[i]) for values in difference.by_seed.values()]
        found[metric] = _interval(metric, float(difference.mean[i]), by_seed, difference.drawn[:, i], level)
    return found


def _interval(
    metric: str, mean: float, by_seed: Sequence[float], drawn: Tensor, level: float
) -> dict[str, float | int | str | None]:
    sign = 1.0 if metric in HIGHER_IS_BETTER else -1.0
    if not math.isfinite(mean):
        verdict = "equal" if math.isnan(mean) else "better" if sign * mean > 0 else "worse"
        return {**dict.fromkeys(("difference", "low", "high", "seed_sd", "agree")), "verdict": verdict}
    moved = (drawn - drawn.mean() + mean).numpy()
    low, high = (round(float(q), DIGITS) for q in np.quantile(moved, [(1 - level) / 2, (1 + level) / 2]))
    covers = low <= 0.0 <= high
    return {
        "difference": round(mean, DIGITS),
        "low": low,
        "high": high,
        "seed_sd": round(float(np.std(by_seed, ddof=1)), DIGITS) if len(by_seed) > 1 else None,
        "agree": sum(value * mean > 0 for value in by_seed),
        "verdict": "equal" if covers else "better" if sign * mean > 0 else "worse",
    }

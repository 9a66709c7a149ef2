"""Paired bootstrap: whether one system is better than another or was lucky with its test rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bara_pyro.errors import ConfigError, DataError, unknown
from bara_pyro.metrics._inputs import check_labels, check_log_probs, correctness
from bara_pyro.metrics.reliability import DEFAULT_BINS, bin_index
from bara_pyro.metrics.scores import brier_per_example, nll_per_example

CHUNK = 4_000_000
"""Entries of the resampling matrix held at a time (float64: 32 MB)."""


@dataclass(frozen=True)
class Interval:
    """A bootstrap interval of `metric(a) - metric(b)`, in the metric's unit.

    Attributes:
        metric: `acc`, `ece` (percent), `nll` (nats) or `brier` (0..2).
        difference: the difference on the rows themselves.
        low: the lower end of the interval.
        high: the upper end.
        level: the nominal coverage, 0.95 for example.
        resamples: how many bootstrap samples it rests on.
    """

    metric: str
    difference: float
    low: float
    high: float
    level: float
    resamples: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the systems differ at this level."""
        return self.low > 0.0 or self.high < 0.0


def _acc(log_probs: Tensor, labels: Tensor) -> Tensor:
    return 100.0 * correctness(log_probs, labels)[1][:, None]


def _nll(log_probs: Tensor, labels: Tensor) -> Tensor:
    return nll_per_example(log_probs, labels)[:, None]


def _brier(log_probs: Tensor, labels: Tensor) -> Tensor:
    return brier_per_example(log_probs, labels)[:, None]


def _ece(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Each row's signed gap in the column of its bin: ECE is the sum of |column means|."""
    confidence, correct = correctness(log_probs, labels)
    columns = torch.zeros(len(labels), DEFAULT_BINS, dtype=torch.float64)
    return columns.scatter(
        1, bin_index(confidence, DEFAULT_BINS)[:, None], 100.0 * (correct - confidence)[:, None]
    )


PER_ROW: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "acc": _acc,
    "nll": _nll,
    "brier": _brier,
    "ece": _ece,
}
"""Per metric, `n x k` numbers: the metric is the sum of the absolute values of their column means."""


def resampled_scores(columns: Sequence[Tensor], resamples: int, rng: np.random.Generator) -> Tensor:
    """Return scores on resampled rows, the same rows for all of them.

    Args:
        columns: per score the `n x k` numbers of `PER_ROW`, finite; k may differ.
        resamples: number of bootstrap samples.
        rng: draws the rows.

    Returns:
        float64, `resamples x len(columns)`.
    """
    joined, rows = torch.cat(list(columns), dim=1), len(columns[0])
    chunk = max(1, CHUNK // rows)
    sizes = [min(chunk, resamples - start) for start in range(0, resamples, chunk)]
    widths = [column.shape[1] for column in columns]
    return torch.cat([_scores(_resampling_weights(rows, size, rng) @ joined, widths) for size in sizes])


def plain_scores(columns: Sequence[Tensor]) -> Tensor:
    """Return the scores on the rows themselves (float64, `len(columns)`); see `resampled_scores`."""
    means = torch.cat([column.mean(dim=0) for column in columns])
    return _scores(means[None], [column.shape[1] for column in columns])[0]


def _scores(means: Tensor, widths: Sequence[int]) -> Tensor:
    """Return the sums of the absolute values of runs of columns."""
    owner = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths))
    return torch.zeros(len(means), len(widths), dtype=means.dtype).index_add_(1, owner, means.abs())


def _resampling_weights(rows: int, resamples: int, rng: np.random.Generator) -> Tensor:
    """Return how often each row is drawn, over `rows`, in each resample (float64, `resamples x rows`)."""
    drawn = rng.integers(rows, size=(resamples, rows)) + rows * np.arange(resamples)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=resamples * rows).reshape(resamples, rows)
    return torch.from_numpy(counts).double() / rows


def paired_bootstrap(
    metric: str,
    log_probs_a: Tensor | Sequence[Any],
    log_probs_b: Tensor | Sequence[Any],
    labels: Tensor | Sequence[int],
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return the percentile interval of `metric(a) - metric(b)` when the rows are drawn anew (Efron 1979).

    Both systems are scored on the same resampled rows. The interval speaks of other rows, not of other
    training seeds. ECE is biased upwards on a resample (more for a calibrated system), so that its interval
    is rougher than the other three.

    Args:
        metric: `acc`, `nll`, `brier` or `ece`.
        log_probs_a: `n x C`, natural log of the posterior-predictive probabilities of system a.
        log_probs_b: the same of system b.
        labels: `n`, index of the right class.
        resamples: number of bootstrap samples.
        level: nominal coverage, between 0 and 1.
        seed: the same seed gives the same interval.

    Raises:
        DataError: when the inputs do not fit each other or an NLL is infinite.
        ConfigError: when the metric is unknown, or `resamples` or `level` out of range.
    """
    if metric not in PER_ROW:
        raise ConfigError(unknown("metric", metric, PER_ROW))
    if resamples < 1 or not 0.0 < level < 1.0:
        raise ConfigError(
            f"resamples is {resamples}, level {level}: give at least 1, and a level between 0 and 1."
        )
    a, b = check_log_probs(log_probs_a, "log_probs_a"), check_log_probs(log_probs_b, "log_probs_b")
    if a.shape != b.shape:
        raise DataError(
            f"The systems have shapes {tuple(a.shape)} and {tuple(b.shape)}: score the same rows."
        )
    target = check_labels(labels, *a.shape)
    values = torch.stack([PER_ROW[metric](a, target), PER_ROW[metric](b, target)])
    if not torch.isfinite(values).all():
        raise DataError(f"A {metric} is infinite: a right answer has probability 0, so there is no interval.")

    sample = resampled_scores(list(values), resamples, np.random.default_rng(seed))
    low, high = np.quantile((sample[:, 0] - sample[:, 1]).numpy(), [(1 - level) / 2, (1 + level) / 2])
    a_score, b_score = plain_scores(list(values)).tolist()
    return Interval(metric, a_score - b_score, float(low), float(high), level, resamples)

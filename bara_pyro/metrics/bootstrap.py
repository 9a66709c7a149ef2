"""Paired Bayesian bootstrap over clusters of rows (people, authors, passages).

Every draw gives each cluster an Exp(1) weight (Rubin 1981; for crossed data Owen and Eckles 2012, Ann. Appl.
Stat. 6, 895-927). The weights depend on the cluster's name and the seed only, so a cluster that occurs in
several tasks has the same weights in all of them, and no draw is empty. Every score is computed anew in each
draw, the ECE as well. Weights vary less than resampled counts; `metrics.intervals` corrects for this.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics._inputs import check_labels, check_log_probs
from bara_pyro.metrics.base import rows_of
from bara_pyro.metrics.intervals import Interval, TaskDifference, crossed_interval


def drawn_scores(
    columns: Sequence[Tensor], clusters: Sequence[str], resamples: int = 2000, seed: int = 0
) -> Tensor:
    """Return scores on bootstrap draws of clusters of rows, with the same draws for all scores.

    Args:
        columns: for each score the finite `n x k` output of a metric's `per_row`; k may differ between
            scores.
        clusters: the cluster of each of the n rows. A cluster has the same weights in every call with the
            same seed, so rows of several tasks may be about the same people.
        resamples: number of draws.
        seed: the same seed gives the same draws.

    Returns:
        float64, `resamples x len(columns)`, in the units of the scores.

    Raises:
        ConfigError: `resamples` is below 2.
    """
    weights, index = drawn_clusters(clusters, resamples, seed)
    joined = torch.cat(list(columns), dim=1)
    sums = torch.zeros(weights.shape[1], joined.shape[1], dtype=torch.float64).index_add_(0, index, joined)
    means = (weights @ sums) / (weights @ torch.bincount(index).double())[:, None]
    return _scores(means, [column.shape[1] for column in columns])


def drawn_clusters(clusters: Sequence[str], resamples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the weights of clusters, `resamples x clusters`, and the index of each row's cluster, `n`."""
    if resamples < 2:
        raise ConfigError(f"resamples is {resamples}: give at least 2, 2000 for example.")
    names, place = np.unique(np.asarray(list(map(str, clusters))), return_inverse=True)
    weights = torch.stack([_weights(name, resamples, seed) for name in names.tolist()], dim=1)
    return weights, torch.from_numpy(place)


def _weights(cluster: str, resamples: int, seed: int) -> Tensor:
    """Return Exp(1) numbers that depend on the name and the seed only (float64, `resamples`)."""
    name = int.from_bytes(hashlib.sha256(cluster.encode()).digest()[:8])
    return torch.from_numpy(np.random.default_rng([seed, name]).standard_exponential(resamples))


def plain_scores(columns: Sequence[Tensor]) -> Tensor:
    """Return the scores on the observed rows (float64, `len(columns)`); see `drawn_scores`."""
    means = torch.cat([column.mean(dim=0) for column in columns])
    return _scores(means[None], [column.shape[1] for column in columns])[0]


def _scores(means: Tensor, widths: Sequence[int]) -> Tensor:
    """Return the sum of absolute values over each run of columns; `widths` are the lengths of the runs."""
    owner = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths))
    return torch.zeros(len(means), len(widths), dtype=means.dtype).index_add_(1, owner, means.abs())


def paired_bootstrap(
    metric: str,
    log_probs_a: Tensor,
    log_probs_b: Tensor,
    labels: Tensor,
    *,
    clusters: Sequence[str] | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return the difference `score(a) - score(b)` of two systems on the same rows, with an interval.

    The interval covers training seeds and clusters of test rows (see `metrics.intervals`).

    Args:
        metric: name of a metric that can compare runs (`bara_pyro.metrics.base.compared`): `acc`, `ece`,
            `nll` or `brier`.
        log_probs_a: log-probabilities of the first system (nats), `n x C`, or `seeds x n x C` for several
            trainings.
        log_probs_b: log-probabilities of the second system, of the same shape. Its seeds are paired with
            those of the first.
        labels: `n`, index of the right class.
        clusters: the cluster of each row; if None, every row is a cluster.
        resamples: number of draws.
        level: nominal coverage, between 0 and 1.
        seed: the same seed gives the same interval.

    Raises:
        DataError: the shapes do not match, a score is infinite, or all rows are in one cluster.
        ConfigError: the metric is unknown, or `resamples` or `level` is out of range.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import paired_bootstrap
        >>> labels = torch.tensor([0, 1] * 50)
        >>> sure = torch.tensor([[0.9, 0.1], [0.1, 0.9]] * 50).log()
        >>> coin = torch.full((100, 2), 0.5).log()
        >>> found = paired_bootstrap("nll", sure, coin, labels)
        >>> round(found.difference, 4), found.excludes_zero  # -log 0.9 + log 0.5
        (-0.5878, True)
    """
    per_row = rows_of(metric)
    dims = 3 if isinstance(log_probs_a, Tensor) and log_probs_a.dim() == 3 else 2
    a = check_log_probs(log_probs_a, "log_probs_a", dims)
    b = check_log_probs(log_probs_b, "log_probs_b", dims)
    if a.shape != b.shape:
        raise DataError(
            f"The systems have shapes {tuple(a.shape)} and {tuple(b.shape)}: give the same rows and seeds."
        )
    both = torch.cat([a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])])
    target = check_labels(labels, *a.shape[-2:])
    names = [str(i) for i in range(len(target))] if clusters is None else list(clusters)
    if len(names) != len(target):
        raise DataError(
            f"There are {len(target)} rows and {len(names)} clusters: give one cluster for each row."
        )
    columns = [per_row(log_probs, target) for log_probs in both]
    if not all(torch.isfinite(values).all() for values in columns):
        raise DataError(
            f"{metric} is infinite in a row: its right answer has probability 0, so there is no interval."
        )
    plain, drawn = plain_scores(columns), drawn_scores(columns, names, resamples, seed)
    seeds = len(both) // 2
    pair = TaskDifference(plain[:seeds] - plain[seeds:], drawn[:, :seeds] - drawn[:, seeds:], Counter(names))
    return crossed_interval([pair], level)

"""What is promised of independent rows fails where rows go together, and holds of one row of each cluster."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from bara_pyro.data import Example
from bara_pyro.data.clusters import one_of_each
from bara_pyro.errors import DataError
from bara_pyro.metrics import abstention, prediction_sets

REPETITIONS, ALPHA, RISK, DELTA = 400, 0.1, 0.1, 0.05


def log_probs(of_the_first: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.stack([of_the_first, 1 - of_the_first], axis=1)).log()


def one_each(names: Sequence[str], place: int) -> list[int]:
    """Return the places of one row of each cluster; ids differ by `place`, so that others are taken."""
    rows = [Example(f"{place}-{i}", "?", cluster=name) for i, name in enumerate(names)]
    taken = {row.id for row in one_of_each(rows)}
    return [i for i, row in enumerate(rows) if row.id in taken]


def test_sets_cover_rows_of_another_cluster_only_where_one_of_each_calibrates() -> None:
    """Fifteen clusters of twenty rows with one score: the 30th of 300 scores is the second of fifteen.

    Its rank among those and a new cluster's is uniform: 14/16 are covered, where 90 in a hundred are
    promised. Of one row each the largest score is taken, which 15/16 are within.
    """
    rng = np.random.default_rng(0)
    names = [f"c{c}" for c in range(15) for _ in range(20)]
    found = []
    for place in range(REPETITIONS):
        right = np.repeat(rng.uniform(0.01, 0.99, size=15), 20)  # the right answer's probability
        rows = one_each(names, place)
        for kept in (range(300), rows):
            sets = prediction_sets(log_probs(right[list(kept)]), [0] * len(kept), alpha=ALPHA)
            found.append((0.99 - (1 - sets.threshold)) / 0.98)  # P(1 - p <= threshold) of another cluster
    everything, one = np.reshape(found, (REPETITIONS, 2)).T
    # Beta(14, 2) and Beta(15, 1).
    for values, (a, b) in ((everything, (14, 2)), (one, (15, 1))):
        spread = math.sqrt(a * b / (a + b) ** 2 / (a + b + 1) / REPETITIONS)
        assert values.mean() == pytest.approx(a / (a + b), abs=3 * spread)
    assert everything.mean() < 1 - ALPHA <= one.mean()


def test_an_error_rate_is_promised_of_clusters_only_where_one_row_of_each_calibrates() -> None:
    """Every threshold answers with an error rate above the risk: the promise fails wherever one is chosen."""
    rng, wrong, within = np.random.default_rng(1), 0.101, 0.3  # the error rate; the correlation in a cluster
    size = 1 / within - 1
    names = [f"c{c}" for c in range(40) for _ in range(10)]
    failed = np.zeros(2)
    for place in range(REPETITIONS):
        rate = np.repeat(rng.beta(wrong * size, (1 - wrong) * size, size=40), 10)
        labels = (rng.uniform(size=400) < rate).astype(int)
        confidence = np.repeat(rng.uniform(0.55, 0.95, size=40), 10)
        for i, kept in enumerate((range(400), one_each(names, place))):
            rows = list(kept)
            try:
                abstention(log_probs(confidence[rows]), labels[rows].tolist(), risk=RISK, delta=DELTA)
            except DataError:
                continue
            failed[i] += 1
    everything, one = failed / REPETITIONS
    noise = 3 * math.sqrt(DELTA * (1 - DELTA) / REPETITIONS)
    assert everything > DELTA + noise
    assert one <= DELTA + noise

"""The paired bootstrap."""

import numpy as np
import pytest
import torch
from metric_cases import logs, perfect, random_case, worst

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics import accuracy, bootstrap, brier, ece, nll, paired_bootstrap

METRICS = {"acc": accuracy, "nll": nll, "brier": brier, "ece": ece}


def two_systems(seed: int, n: int = 120) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    log_probs, labels = random_case(seed, n=n)
    noise = torch.randn(log_probs.shape, generator=torch.Generator().manual_seed(seed + 100))
    return log_probs, (0.6 * log_probs + noise).log_softmax(-1), labels


@pytest.mark.parametrize("metric", METRICS)
def test_equals_scoring_each_resample(metric: str):
    a, b, labels = two_systems(0)
    found = paired_bootstrap(metric, a, b, labels, resamples=50, seed=3)
    rows = np.random.default_rng(3).integers(len(labels), size=(50, len(labels)))
    score = METRICS[metric]
    sample = [score(a[i], labels[i]) - score(b[i], labels[i]) for i in torch.from_numpy(rows)]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(sample, [0.025, 0.975])), abs=1e-9)
    assert found.difference == pytest.approx(score(a, labels) - score(b, labels), abs=1e-9)


@pytest.mark.parametrize("metric", METRICS)
def test_seeded_antisymmetric_and_independent_of_the_chunk_size(metric: str, monkeypatch: pytest.MonkeyPatch):
    a, b, labels = two_systems(1)
    found = paired_bootstrap(metric, a, b, labels, resamples=100)
    swapped = paired_bootstrap(metric, b, a, labels, resamples=100)
    assert (swapped.low, swapped.high) == pytest.approx((-found.high, -found.low), abs=1e-9)
    assert paired_bootstrap(metric, a, b, labels, resamples=100, seed=1) != found
    monkeypatch.setattr(bootstrap, "CHUNK", 7 * len(labels))
    again = paired_bootstrap(metric, a, b, labels, resamples=100)
    assert (again.low, again.high) == pytest.approx((found.low, found.high), abs=1e-9)


@pytest.mark.parametrize("metric", METRICS)
def test_a_system_does_not_differ_from_itself(metric: str):
    a, _, labels = two_systems(2)
    found = paired_bootstrap(metric, a, a, labels, resamples=20)
    assert (found.low, found.difference, found.high) == (0.0, 0.0, 0.0)
    assert not found.excludes_zero


def test_a_clear_difference_excludes_zero_on_either_side():
    good, labels = perfect(30)
    bad, _ = worst(30)
    bad = bad.roll(1, dims=1)
    found = paired_bootstrap("acc", good, bad, labels, resamples=50)
    assert (found.low, found.high, found.excludes_zero) == pytest.approx((100, 100, True))
    assert paired_bootstrap("acc", bad, good, labels, resamples=50).excludes_zero


def test_covers_the_true_difference_as_often_as_it_says():
    # Row-wise truth: label 0 with probability 0.7. System a says 0.7, b says 0.5 or 0.9 at random.
    generator = torch.Generator().manual_seed(0)
    a_row, low, high = logs([0.7, 0.3]), logs([0.5, 0.5]), logs([0.9, 0.1])
    truth = torch.tensor([0.7, 0.3], dtype=torch.float64)
    difference = float((-truth * (a_row - (low + high) / 2)).sum())
    hits, repetitions, n = 0, 300, 80
    for repetition in range(repetitions):
        labels = (torch.rand(n, generator=generator) > 0.7).long()
        b = torch.where(torch.rand(n, 1, generator=generator) < 0.5, low, high)
        found = paired_bootstrap(
            "nll", a_row.expand(n, 2), b, labels, resamples=300, level=0.9, seed=repetition
        )
        hits += found.low <= difference <= found.high
    # Binomial(300, 0.9) has standard deviation 1.7 points; the percentile interval loses a little more.
    assert 0.83 < hits / repetitions < 0.96


def test_a_higher_level_is_a_wider_interval():
    a, b, labels = two_systems(4)
    narrow = paired_bootstrap("nll", a, b, labels, level=0.5)
    wide = paired_bootstrap("nll", a, b, labels, level=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_unusable_input():
    a, b, labels = two_systems(0)
    with pytest.raises(DataError, match="same rows"):
        paired_bootstrap("acc", a, b[:-1], labels)
    with pytest.raises(DataError, match="labels"):
        paired_bootstrap("acc", a, b, labels[:-1])
    with pytest.raises(DataError, match="log_probs_b"):
        paired_bootstrap("acc", a, b + 1, labels)
    with pytest.raises(DataError, match="infinite"):
        paired_bootstrap("nll", *(2 * [worst()[0]]), worst()[1])
    with pytest.raises(ConfigError, match="Unknown metric 'f1': choose one of acc"):
        paired_bootstrap("f1", a, b, labels)
    for setting in ({"resamples": 0}, {"level": 1.0}, {"level": 0.0}):
        with pytest.raises(ConfigError, match="level"):
            paired_bootstrap("acc", a, b, labels, **setting)

"""The paired bootstrap over clusters of rows."""

import math

import numpy as np
import pytest
import torch
from metric_cases import logs, random_case, worst
from scipy import stats

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics import accuracy, brier, ece, nll, paired_bootstrap
from bara_pyro.metrics.base import rows_of
from bara_pyro.metrics.bootstrap import drawn_scores

METRICS = {"acc": accuracy, "nll": nll, "brier": brier, "ece": ece}


def two_systems(seed: int, n: int = 120) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    log_probs, labels = random_case(seed, n=n)
    noise = torch.randn(log_probs.shape, generator=torch.Generator().manual_seed(seed + 100))
    return log_probs, (0.6 * log_probs + noise).log_softmax(-1), labels


def weighted(metric: str, log_probs: torch.Tensor, labels: torch.Tensor, weights: list[float]) -> float:
    """Return a score of rows that count by weights, in plain loops."""
    probs, total = log_probs.exp().tolist(), sum(weights)
    if metric == "ece":
        bins = [0.0] * 15
        for row, label, weight in zip(probs, labels.tolist(), weights, strict=True):
            confidence = max(row)
            bins[min(14, int(confidence * 15))] += weight * ((row.index(confidence) == label) - confidence)
        return 100 * sum(map(abs, bins)) / total
    one = {
        "acc": lambda row, label: 100.0 * (row.index(max(row)) == label),
        "nll": lambda row, label: -math.log(row[label]),
        "brier": lambda row, label: sum((p - (c == label)) ** 2 for c, p in enumerate(row)),
    }[metric]
    return sum(w * one(row, y) for row, y, w in zip(probs, labels.tolist(), weights, strict=True)) / total


@pytest.mark.parametrize("metric", METRICS)
def test_equals_scoring_each_draw_in_a_loop(metric: str):
    a, b, labels = two_systems(0)
    names = [f"author {i % 17}" for i in range(len(labels))]
    drawn = drawn_scores([rows_of(metric)(x, labels) for x in (a, b)], names, 30, seed=3)
    # Which weights a name gets is seen from a score that is 1 for its rows and 0 elsewhere.
    shares = drawn_scores(
        [torch.tensor([[n == k] for n in names]).double() for k in names[:17]], names, 30, seed=3
    )
    for r, share in enumerate(shares):
        weights = [float(share[i % 17]) / names.count(names[i]) for i in range(len(names))]
        for score, system in zip(drawn[r], (a, b), strict=True):
            assert float(score) == pytest.approx(weighted(metric, system, labels, weights), abs=1e-9)
    assert METRICS[metric](a, labels) == pytest.approx(weighted(metric, a, labels, [1.0] * len(labels)))
    found = paired_bootstrap(metric, a, b, labels, clusters=names, resamples=30, seed=3)
    assert found.difference == pytest.approx(
        METRICS[metric](a, labels) - METRICS[metric](b, labels), abs=1e-9
    )
    sizes = [names.count(name) for name in set(names)]
    count = sum(sizes) ** 2 / sum(size**2 for size in sizes)  # as if all were of one size
    spread = math.sqrt((count + 1) / (count - 1))
    assert found.se_rows == pytest.approx(spread * float((drawn[:, 0] - drawn[:, 1]).std()))
    assert found.df == pytest.approx(count - 1)


def test_weights_are_exponential_and_a_name_s_own():
    names = [f"n{i}" for i in range(4)]
    columns = [torch.eye(4, dtype=torch.float64)[:, [i]] for i in range(4)]
    drawn = drawn_scores(columns, names, 20_000).numpy()
    # Shares of four Exp(1) are Dirichlet(1, 1, 1, 1): each is Beta(1, 3), each pair correlated by -1/3.
    assert all(stats.kstest(drawn[:, i], stats.beta(1, 3).cdf).pvalue > 0.001 for i in range(4))
    assert np.corrcoef(drawn.T)[np.triu_indices(4, 1)] == pytest.approx(-np.ones(6) / 3, abs=0.03)
    turned = drawn_scores(columns, names[::-1], 20_000).numpy()
    assert turned == pytest.approx(drawn[:, ::-1])


@pytest.mark.parametrize("metric", ["nll", "ece"])
def test_seeded_and_antisymmetric(metric: str):
    a, b, labels = two_systems(1)
    found = paired_bootstrap(metric, a, b, labels, resamples=100)
    swapped = paired_bootstrap(metric, b, a, labels, resamples=100)
    assert (swapped.low, swapped.high) == pytest.approx((-found.high, -found.low), abs=1e-9)
    assert paired_bootstrap(metric, a, b, labels, resamples=100) == found
    assert paired_bootstrap(metric, a, b, labels, resamples=100, seed=1) != found


def test_accuracy_has_the_width_of_mcnemars_standard_error():
    a, b, labels = two_systems(5, n=1200)
    right, other = a.argmax(1) == labels, b.argmax(1) == labels
    only_a, only_b, n = int((right & ~other).sum()), int((other & ~right).sum()), len(labels)
    error = 100 * math.sqrt((only_a + only_b) - (only_a - only_b) ** 2 / n) / n
    assert paired_bootstrap("acc", a, b, labels).se_rows == pytest.approx(
        error, rel=0.06
    )  # 2,000 draws: 1.6 %


def test_several_trainings_are_paired_by_seed():
    runs = [two_systems(0) for _ in range(2)]
    a, b = torch.stack([runs[0][0], runs[1][1]]), torch.stack([runs[0][1], runs[1][0]])
    found = paired_bootstrap("nll", a, b, runs[0][2])
    by_seed = [nll(x, runs[0][2]) - nll(y, runs[0][2]) for x, y in zip(a, b, strict=True)]
    assert found.difference == pytest.approx(0.0, abs=1e-12)  # the second seed turns the first round
    assert found.se_seeds == pytest.approx(np.std(by_seed, ddof=1) / math.sqrt(2))
    assert found.se_rows == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("metric", ["nll", "ece"])
def test_a_system_does_not_differ_from_itself(metric: str):
    a, _, labels = two_systems(2)
    found = paired_bootstrap(metric, a, a, labels, resamples=20)
    # Not 0 to the bit: some processors sum the columns of one matrix product in different orders.
    assert (found.low, found.difference, found.high) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)
    assert not found.excludes_zero


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
    assert hits / repetitions == pytest.approx(0.9, abs=3 * math.sqrt(0.9 * 0.1 / repetitions))


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
    with pytest.raises(DataError, match="3 clusters"):
        paired_bootstrap("acc", a, b, labels, clusters=["x", "y", "z"])
    with pytest.raises(ConfigError, match="Unknown metric 'f1': choose one of acc"):
        paired_bootstrap("f1", a, b, labels)
    with pytest.raises(ConfigError, match="resamples is 1"):
        paired_bootstrap("acc", a, b, labels, resamples=1)


@pytest.mark.parametrize(("rows", "told"), [(2, False), (4, False), (6, True), (12, True)])
def test_clusters_that_all_agree_tell_as_much_as_a_sign_test(rows: int, told: bool) -> None:
    """Two rows, of which A has both right and B none, were called different with p = 1e-16."""
    right = torch.tensor([[0.9, 0.1]], dtype=torch.float64).log().expand(rows, 2)
    labels = torch.zeros(rows, dtype=torch.long)
    found = paired_bootstrap("acc", right, right.flip(1), labels)
    assert found.difference == pytest.approx(100)
    assert found.p_value == pytest.approx(2 * 0.5**rows)
    assert found.excludes_zero == told


def test_clusters_may_be_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(12, 2, generator=generator, dtype=torch.float64).log_softmax(1) for _ in "ab")
    labels = torch.arange(12) % 2
    numbers = [i // 3 for i in range(12)]
    found = paired_bootstrap("nll", a, b, labels, clusters=numbers)
    assert found == paired_bootstrap("nll", a, b, labels, clusters=[str(i) for i in numbers])

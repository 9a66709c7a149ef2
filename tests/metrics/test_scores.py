"""Accuracy, calibration errors, NLL, Brier, risk and coverage, sparsity, and `evaluate`."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from metric_cases import (
    logs,
    naive_adaptive_ece,
    naive_aurc,
    naive_brier,
    naive_ece,
    perfect,
    random_case,
    worst,
)
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics import (
    accuracy,
    adaptive_ece,
    aurc,
    brier,
    ece,
    evaluate,
    nll,
    reliability_bins,
    risk_coverage,
    sparsity,
)
from bara_pyro.metrics.sparsity import over_modules, sparsity_by_module

SCORES = [accuracy, ece, adaptive_ece, nll, brier, aurc]
SEEDS = (0, 3)


def test_hand_computed():
    # Row  top label  confidence  right  bin of 15 (width 1/15)
    #  0       0         0.9       yes   13  [0.8667, 0.9333)
    #  1       1         0.9       no    13
    #  2       0         0.6       yes    9  [0.6, 0.6667)
    #  3       1         0.7       yes   10  [0.6667, 0.7333)
    log_probs = logs([0.9, 0.1], [0.1, 0.9], [0.6, 0.4], [0.3, 0.7])
    labels = torch.tensor([0, 0, 0, 1])
    assert accuracy(log_probs, labels) == 75.0
    # Bin 13: |0.5 - 0.9| of 2 rows, bin 9: 0.4 of 1, bin 10: 0.3 of 1.
    assert ece(log_probs, labels) == pytest.approx(100 * (2 * 0.4 + 0.4 + 0.3) / 4)
    # Two bins of equal mass: {0.6, 0.7} both right, {0.9, 0.9} one right.
    assert adaptive_ece(log_probs, labels, n_bins=2) == pytest.approx(100 * (0.7 + 0.8) / 4)
    expected = -(math.log(0.9) + math.log(0.1) + math.log(0.6) + math.log(0.7)) / 4
    assert nll(log_probs, labels) == pytest.approx(expected)
    assert brier(log_probs, labels) == pytest.approx(2 * (0.1**2 + 0.9**2 + 0.4**2 + 0.3**2) / 4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_calibration_errors_equal_plain_loops(seed: int, n_bins: int):
    log_probs, labels = random_case(seed, n=150 + seed, classes=2 + seed)
    assert ece(log_probs, labels, n_bins) == pytest.approx(naive_ece(log_probs, labels, n_bins), abs=1e-9)
    expected = naive_adaptive_ece(log_probs, labels, n_bins)
    assert adaptive_ece(log_probs, labels, n_bins) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_brier_and_nll_equal_plain_loops(seed: int):
    log_probs, labels = random_case(seed)
    assert brier(log_probs, labels) == pytest.approx(naive_brier(log_probs, labels))
    total = sum(-row[label] for row, label in zip(log_probs.tolist(), labels.tolist(), strict=True))
    assert nll(log_probs, labels) == pytest.approx(total / len(labels))


@pytest.mark.parametrize("seed", SEEDS)
def test_agrees_with_torchmetrics_multiclass(seed: int):
    log_probs, labels = random_case(seed)
    theirs = multiclass_calibration_error(log_probs.exp(), labels, num_classes=4, n_bins=15)
    assert ece(log_probs, labels) == pytest.approx(100 * float(theirs), abs=1e-3)  # theirs is float32
    theirs = multiclass_accuracy(log_probs.exp(), labels, num_classes=4, average="micro")
    assert accuracy(log_probs, labels) == pytest.approx(100 * float(theirs), abs=1e-3)


def test_confidence_one_shares_the_last_bin():
    # One row at 1.0 and wrong, one at 0.95 and right: |0.5 - 0.975| in one bin; in two bins it would be 52.5.
    log_probs = logs([1.0, 0.0], [0.95, 0.05])
    assert ece(log_probs, torch.tensor([1, 0])) == pytest.approx(47.5)


def test_probability_above_one_by_rounding_is_not_taken_for_a_logit():
    log_probs = torch.tensor([[1e-15, -40.0], [-40.0, 1e-15]], dtype=torch.float64)
    assert ece(log_probs, torch.tensor([0, 0])) == pytest.approx(50.0)


def test_perfect_and_worst():
    expected = {"n": 12, "acc": 100, "ece": 0, "nll": 0, "brier": 0, "aece": 0, "aurc": 0}
    found = evaluate(*perfect())
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    assert math.copysign(1, nll(*perfect())) == 1
    expected = {"n": 12, "acc": 0, "ece": 100, "nll": math.inf, "brier": 2, "aece": 100, "aurc": 100}
    found = evaluate(*worst())
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)


def test_extreme_log_probs_stay_finite():
    log_probs = torch.tensor([[0.0, -1e4], [-1e4, 0.0]], dtype=torch.float64)
    scores = evaluate(log_probs, torch.tensor([0, 0]))
    assert all(math.isfinite(v) for v in scores.values())
    assert scores["nll"] == pytest.approx(5000.0)


def test_float32_and_lists_are_computed_in_float64():
    log_probs, labels = random_case(0)
    single = log_probs.float()
    assert evaluate(single, labels) == pytest.approx(evaluate(single.double(), labels), rel=0, abs=0)
    assert evaluate(log_probs.tolist(), labels.tolist()) == evaluate(log_probs, labels)
    assert evaluate(log_probs.requires_grad_(), labels) == evaluate(log_probs.detach(), labels)


@pytest.mark.parametrize("seed", SEEDS)
def test_reliability_bins_hold_all_rows(seed: int):
    log_probs, labels = random_case(seed, classes=3, sharpness=1.0 + 3 * seed)
    bins = reliability_bins(log_probs, labels)
    assert int(bins.counts.sum()) == len(labels)
    assert torch.isnan(bins.accuracy).equal(bins.counts == 0)


def test_reliability_bins_by_hand():
    log_probs = logs([0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [1.0, 0.0])
    bins = reliability_bins(log_probs, torch.tensor([0, 0, 0, 0]), n_bins=5)
    # 0.8 and 0.6 are edges and belong to the bin above; 1.0 belongs to the last bin.
    assert bins.counts.tolist() == [0, 0, 0, 1, 3]
    assert bins.accuracy[3:].tolist() == pytest.approx([1.0, 2 / 3])
    assert bins.confidence[3:].tolist() == pytest.approx([0.6, 0.9])


UNUSABLE = {
    "no rows": (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), "empty"),
    "one dimension": (torch.zeros(3), torch.zeros(3, dtype=torch.long), "shape"),
    "ragged": ([[-0.7, -0.7], [0.0]], [0, 0], "same length"),
    "too few labels": (logs([0.5, 0.5], [0.5, 0.5]), [0], "2 rows of log_probs and 1 labels"),
    "unknown label": (logs([0.5, 0.5], [0.5, 0.5]), [0, -1], "Label -1 in row 1"),
    "label too large": (logs([0.5, 0.5]), [2], "Label 2 in row 0"),
    "fractional label": (logs([0.5, 0.5]), [0.5], "Label 0.5 in row 0"),
    "NaN": (logs([0.5, 0.5], [math.nan, 0.5]), [0, 0], "NaN in row 1"),
    "logits": (torch.tensor([[2.0, 1.0]]), [0], "not logits"),
    "probabilities": (torch.tensor([[0.5, 0.5]]), [0], "not logits"),
}


@pytest.mark.parametrize(
    ("score", "case"),
    [*((evaluate, case) for case in UNUSABLE), *((score, "NaN") for score in (*SCORES, reliability_bins))],
)
def test_unusable_input_gives_one_clear_error(score, case: str):
    log_probs, labels, words = UNUSABLE[case]
    with pytest.raises(DataError, match=words):
        score(log_probs, labels)


@pytest.mark.parametrize(("score", "n_bins"), [(ece, 0), (adaptive_ece, -1), (reliability_bins, 1.5)])
def test_impossible_number_of_bins(score, n_bins: float):
    with pytest.raises(ConfigError, match="n_bins"):
        score(*perfect(), n_bins=n_bins)


def test_the_lowest_bin_is_a_bin_of_its_own() -> None:
    """Of 20 classes the surest may have less than 1/15: such rows are not those of the second bin."""
    probs = torch.full((6, 20), 0.05, dtype=torch.float64)
    probs[3:, 0], probs[3:, 1:] = 0.1, 0.9 / 19
    found = reliability_bins(probs.log(), torch.zeros(6, dtype=torch.long))
    assert found.counts.tolist() == [3, 3, *[0] * 13]
    assert found.edges.tolist() == pytest.approx([i / 15 for i in range(16)])


@pytest.mark.parametrize(("n_bins", "edge"), [(15, 1), (15, 8), (15, 14), (20, 7)])
def test_a_confidence_on_an_edge_is_of_the_bin_on_its_right(n_bins: int, edge: int) -> None:
    """So say the bins' names; rounding, which rows that say the same differ by, must not part them."""
    value = Fraction(edge, n_bins)
    classes = int(1 / value) + 2
    rest = (1 - float(value)) / (classes - 1)
    assert rest < float(value)
    rows = torch.tensor([[float(value), *[rest] * (classes - 1)]] * 4, dtype=torch.float64)
    beside = rows + torch.tensor([0.01, *[-0.01 / (classes - 1)] * (classes - 1)], dtype=torch.float64)
    log_probs = torch.cat([rows.log(), rows.log().log_softmax(-1), beside.log()])
    labels = [0] * 8 + [1] * 4
    bins = reliability_bins(log_probs, labels, n_bins)
    assert bins.counts[edge] == 12
    confidence = (8 * float(value) + 4 * (float(value) + 0.01)) / 12
    assert bins.ece == pytest.approx(100 * abs(8 / 12 - confidence))
    assert ece(log_probs, labels, n_bins) == pytest.approx(bins.ece)


def test_counts_absolute_values_strictly_below_tau():
    assert sparsity(torch.tensor([0.05, -0.05, 0.1, -0.1, 0.0, 3.0, -3.0, 0.099])) == 50.0
    assert sparsity(torch.tensor([[0.4, 0.6], [-0.4, 2.0]]), tau=0.5) == 50.0
    assert sparsity([0.0, 0.0]) == 100.0
    assert sparsity([0.0], tau=0.0) == 0.0


def test_unusable_gates():
    with pytest.raises(DataError, match="empty"):
        sparsity(torch.zeros(0))
    with pytest.raises(DataError, match="NaN"):
        sparsity(torch.tensor([math.nan]))
    with pytest.raises(ConfigError, match="tau"):
        sparsity(torch.zeros(1), tau=-0.1)


def test_risk_and_coverage_by_hand():
    # By falling confidence: 0.9 right, 0.8 wrong, 0.7 right, 0.6 wrong: risks 0, 1/2, 1/3, 1/2.
    log_probs = logs([0.7, 0.3], [0.9, 0.1], [0.4, 0.6], [0.2, 0.8])
    coverage, risk = risk_coverage(log_probs, torch.tensor([0, 0, 0, 0]))
    assert coverage.tolist() == [25.0, 50.0, 75.0, 100.0]
    assert risk.tolist() == pytest.approx([0.0, 50.0, 100 / 3, 50.0])
    assert aurc(log_probs, torch.tensor([0, 0, 0, 0])) == pytest.approx((50 + 100 / 3 + 50) / 4)


@pytest.mark.parametrize("seed", range(2))
def test_the_area_equals_a_plain_loop(seed: int):
    log_probs, labels = random_case(seed, n=80)
    assert aurc(log_probs, labels) == pytest.approx(naive_aurc(log_probs, labels))


def test_ties_are_the_mean_over_all_orders():
    log_probs = logs([0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.6, 0.4])
    labels = [0, 1, 1, 0]
    over_orders = [
        sum(sum(order[:k]) / k for k in (1, 2, 3)) + sum(order) / 4
        for order in itertools.permutations([0.0, 1.0, 1.0])
    ]
    assert aurc(log_probs, labels) == pytest.approx(100 * sum(over_orders) / len(over_orders) / 4)


SEEDED = torch.Generator().manual_seed(0)
GATES = torch.rand(5, 4, 3, 6, generator=SEEDED) - 0.5  # draws, rows, modules, units


@pytest.mark.parametrize("ranks", [(), (6, 2, 4)], ids=["one rank", "smaller ranks"])
@pytest.mark.parametrize("tau", [0.1, 0.3])
def test_shares_are_those_of_a_loop(ranks: tuple[int, ...], tau: float) -> None:
    kept = ranks or (6, 6, 6)
    by_hand = [[abs(z) < tau for z in GATES[:, :, m, : kept[m]].flatten().tolist()] for m in range(3)]
    found = sparsity_by_module(GATES, tau, ranks)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([100 * sum(closed) / len(closed) for closed in by_hand])
    together = [z for closed in by_hand for z in closed]
    assert over_modules(found, ranks) == pytest.approx(100 * sum(together) / len(together))


def test_a_gate_at_tau_is_open() -> None:
    assert sparsity_by_module(torch.tensor([0.5, -0.5, 0.25]).reshape(1, 1, 1, 3), 0.5).tolist() == [
        pytest.approx(100 / 3)
    ]
    assert sparsity_by_module(torch.full((1, 1, 1, 2), 0.1)).item() == 0.0  # tau is 0.1 unless given


@pytest.mark.parametrize(
    ("log_probs", "labels", "said"),
    [
        ([[0.0, -math.inf], [0.0]], [0, 0], "log_probs cannot be read as one tensor"),
        (torch.empty(0, 2), [], r"log_probs is empty \(shape \(0, 2\)\)"),
        ([[0.0, -math.inf], [math.nan, 0.0]], [0, 0], "log_probs is NaN in row 1:"),
        ([[0.0, -math.inf], [1.0, 2.0]], [0, 0], r"row 1 of log_probs sum to 10\.11, not 1: pass log-prob"),
        ([[0.0, -math.inf]], [[0]], r"labels has shape \(1, 1\)"),
        ([[0.0, -math.inf]], [0, 1], "1 rows of log_probs and 2 labels"),
        ([[0.0, -math.inf]] * 2, [0, 2], r"Label 2 in row 1 is not a class index in 0\.\.1: score only"),
    ],
)
def test_inputs_that_cannot_be_scored_are_named(log_probs: object, labels: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        nll(log_probs, labels)  # type: ignore[arg-type]


def test_the_truth_is_named_if_it_cannot_be_read() -> None:
    with pytest.raises(DataError, match=r"^truth has shape"):
        evaluate(logs([0.9, 0.1]), [0], truth=torch.tensor([0.9, 0.1]))

"""The risk-coverage curve and its area."""

import itertools

import pytest
import torch
from metric_cases import logs, naive_aurc, random_case

from bara_pyro.errors import DataError
from bara_pyro.metrics import aurc, error_auroc, risk_coverage


def test_hand_computed():
    # By falling confidence: 0.9 right, 0.8 wrong, 0.7 right, 0.6 wrong: risks 0, 1/2, 1/3, 1/2.
    log_probs = logs([0.7, 0.3], [0.9, 0.1], [0.4, 0.6], [0.2, 0.8])
    coverage, risk = risk_coverage(log_probs, torch.tensor([0, 0, 0, 0]))
    assert coverage.tolist() == [25.0, 50.0, 75.0, 100.0]
    assert risk.tolist() == pytest.approx([0.0, 50.0, 100 / 3, 50.0])
    assert aurc(log_probs, torch.tensor([0, 0, 0, 0])) == pytest.approx((50 + 100 / 3 + 50) / 4)


@pytest.mark.parametrize("seed", range(6))
def test_equals_plain_loops(seed: int):
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


def test_a_confidence_that_knows_its_errors_beats_one_that_does_not():
    labels = torch.tensor([0, 0, 0, 0])
    knows = logs([0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6])
    does_not = logs([0.6, 0.4], [0.7, 0.3], [0.8, 0.2], [0.1, 0.9])
    assert aurc(knows, labels) == pytest.approx(100 * (1 / 4) / 4)
    assert aurc(does_not, labels) == pytest.approx(100 * (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


def test_wrong_answers_by_low_confidence_by_hand():
    # Right at 0.9 and 0.7, wrong at 0.8 and 0.6: of four pairs the wrong one is lower in three.
    log_probs = logs([0.7, 0.3], [0.9, 0.1], [0.4, 0.6], [0.2, 0.8])
    assert error_auroc(log_probs, [0, 0, 0, 0]) == pytest.approx(75.0)
    tied = logs([0.8, 0.2], [0.2, 0.8])
    assert error_auroc(tied, [0, 0]) == pytest.approx(50.0)


@pytest.mark.parametrize("seed", range(4))
def test_wrong_answers_by_low_confidence_are_pairs(seed: int):
    log_probs, labels = random_case(seed, n=60)
    confidence, predicted = log_probs.exp().max(dim=1)
    right, wrong = confidence[predicted == labels], confidence[predicted != labels]
    lower = (right[:, None] > wrong).double() + 0.5 * (right[:, None] == wrong)
    assert error_auroc(log_probs, labels) == pytest.approx(100 * float(lower.mean()))


@pytest.mark.parametrize(("label", "said"), [(0, "All 2 answers are right"), (1, "All 2 answers are wrong")])
def test_nothing_to_tell_apart(label: int, said: str):
    with pytest.raises(DataError, match=said):
        error_auroc(logs([0.8, 0.2], [0.7, 0.3]), [label, label])

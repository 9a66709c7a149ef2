"""Scores against the true answer distribution."""

import math

import pytest
import torch
from metric_cases import logs

from bara_pyro.errors import DataError
from bara_pyro.metrics import calibration_against_truth, evaluate, kl_from_truth, regret, stack_truth

TRUTH = torch.tensor([[0.7, 0.3], [0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)


def test_the_truth_itself_scores_zero():
    for score in (kl_from_truth, calibration_against_truth, regret):
        assert score(TRUTH.log(), TRUTH) == pytest.approx(0.0, abs=1e-12)


def test_hand_computed():
    log_probs = logs([0.4, 0.6], [0.9, 0.1], [0.2, 0.8])
    first = 0.7 * math.log(0.7 / 0.4) + 0.3 * math.log(0.3 / 0.6)
    second = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    assert kl_from_truth(log_probs, TRUTH) == pytest.approx((first + second - math.log(0.8)) / 3)
    # Predicted labels 1, 0, 1 are true with probability 0.3, 0.5, 1: regret 0.4, 0, 0.
    assert regret(log_probs, TRUTH) == pytest.approx(100 * 0.4 / 3)
    # Each row in a bin of its own: gaps 0.6 - 0.3, 0.9 - 0.5, 1 - 0.8.
    assert calibration_against_truth(log_probs, TRUTH) == pytest.approx(100 * (0.3 + 0.4 + 0.2) / 3)


def test_an_impossible_answer_may_have_probability_zero_but_a_possible_one_may_not():
    assert kl_from_truth(logs([0.0, 1.0]), [[0.0, 1.0]]) == 0.0
    assert kl_from_truth(logs([0.0, 1.0]), [[0.1, 0.9]]) == math.inf


def test_rows_without_a_truth_are_left_out():
    truth = stack_truth([(0.7, 0.3), None, (0.0, 1.0)], num_classes=2)
    log_probs = logs([0.4, 0.6], [0.9, 0.1], [0.2, 0.8])
    kept = torch.tensor([0, 2])
    for score in (kl_from_truth, calibration_against_truth, regret):
        assert score(log_probs, truth) == pytest.approx(score(log_probs[kept], truth[kept]))


def test_evaluate_adds_them_only_where_a_truth_is_known():
    log_probs, labels = logs([0.4, 0.6], [0.9, 0.1], [0.2, 0.8]), [0, 0, 1]
    plain = evaluate(log_probs, labels)
    assert evaluate(log_probs, labels, stack_truth([None] * 3, 2)) == plain
    full = evaluate(log_probs, labels, stack_truth([None, (0.5, 0.5), (0.0, 1.0)], 2))
    assert full.items() >= plain.items()
    assert full["n_truth"] == 2
    assert set(full) - set(plain) == {"n_truth", "kl_truth", "ece_truth", "regret"}


@pytest.mark.parametrize(
    ("truth", "words"),
    [
        ([[0.5, 0.5], [0.5, 0.5]], "shape"),
        ([[0.5, 0.5], [0.5, 0.6], [1.0, 0.0]], "truth of row 1 is"),
        ([[0.5, 0.5], [math.nan, 1.0], [1.0, 0.0]], "truth of row 1 is"),
        ([[0.5, 0.5], [-0.5, 1.5], [1.0, 0.0]], "truth of row 1 is"),
        ([[math.nan, math.nan]] * 3, "No row"),
    ],
)
def test_unusable_truth(truth: list, words: str):
    for score in (kl_from_truth, calibration_against_truth, regret):
        with pytest.raises(DataError, match=words):
            score(TRUTH.clamp(min=0.1).log().log_softmax(-1), truth)


def test_truth_with_the_wrong_number_of_classes():
    with pytest.raises(DataError, match="row 1 has 3 classes"):
        stack_truth([None, (0.2, 0.3, 0.5)], num_classes=2)

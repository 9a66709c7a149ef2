"""Verdicts of an inspection: what chance explains is no reproach, and few rows prove nothing."""

import math

import numpy as np
import pytest
import torch
from xarray import DataArray, Dataset

from bara_pyro.diagnostics.parts.draws import _answers
from bara_pyro.diagnostics.parts.scores import DistributionScores, _plain, scores_of


@pytest.mark.parametrize(("rows", "sure", "expected"), [(20, 0.98, 0), (60, 0.99, 0), (60, 0.7, -1)])
def test_all_answers_right_is_no_reproach_where_that_was_to_be_expected(
    rows: int, sure: float, expected: int
) -> None:
    log_probs = torch.tensor([[sure, 1 - sure]], dtype=torch.float64).log().expand(rows, 2)
    assert scores_of(log_probs, torch.zeros(rows, dtype=torch.long), 0).sureness == expected


@pytest.mark.parametrize(
    ("rows", "right", "sure", "said"),
    [
        (
            12,
            5,
            0.58,
            "gaps under 28 points",
        ),
        (4000, 2320, 0.58, "can be trusted"),
        (4000, 2000, 0.58, "overconfident"),
    ],
)
def test_few_rows_prove_no_calibration(rows: int, right: int, sure: float, said: str) -> None:
    """Worse than the most frequent answer, 12 rows of a run were said to be taken at their word."""
    log_probs = torch.tensor([[sure, 1 - sure]], dtype=torch.float64).log().expand(rows, 2)
    labels = (torch.arange(rows) >= right).long()
    assert said in _plain(scores_of(log_probs, labels, 0))


def mixed(rows: int, right: int, sure: float, unsure: float) -> DistributionScores:
    """Predictions of which those of the wrong answers are `unsure`, the others `sure`."""
    chances = torch.where(torch.arange(rows) < right, sure, unsure).double()
    log_probs = torch.stack([chances, 1 - chances], 1).log()
    return scores_of(log_probs, (torch.arange(rows) >= right).long(), 0)


def test_a_direction_that_chance_may_explain_is_named_with_its_interval() -> None:
    """88 % right and 80 % sure was called neither over- nor under-confident."""
    for right, sure in ((53, 0.8), (45, 0.8)):
        found = mixed(60, right, sure, sure)
        error = 2 * 100 * math.sqrt(sure * (1 - sure) / 60)
        gap = 100 * (sure - right / 60)
        assert found.gap_interval == pytest.approx((gap - error, gap + error))
        assert all(f"{end:+.1f}" in _plain(found) for end in found.gap_interval)


def test_groups_that_err_in_opposite_ways_are_not_taken_at_their_word() -> None:
    """As sure as right on the whole, and wrong wherever it is 60 % sure of 400 rows."""
    found = mixed(2000, 1600, 0.85, 0.6)
    assert found.sureness == 0
    assert found.ece > found.chance_ece_high > found.chance_ece
    assert "can be trusted" not in _plain(found)
    fine = scores_of(
        torch.tensor([[0.8, 0.2]]).double().log().expand(2000, 2), (torch.arange(2000) >= 1600).long(), 0
    )
    assert "can be trusted" in _plain(fine)


def outside(answers: int, trials: int = 300) -> float:
    """The share of trials in which predictions that are right have an answer that is not as predicted."""
    rng, rows, draws, found = np.random.default_rng(answers), 64, 400, 0
    odds = np.full(answers, 1 / answers)
    names = [str(i) for i in range(answers)]
    for _ in range(trials):
        drawn = rng.choice(answers, (1, draws, rows), p=odds)
        groups = {
            "posterior_predictive": Dataset(
                {"y": (("chain", "draw", "row"), drawn), "p": ("answer", odds)}, {"answer": names}
            ),
            "observed_data": Dataset({"y": DataArray(rng.choice(answers, rows, p=odds), dims="row")}),
        }
        found += not all(one.within for one in _answers(groups))
    return found / trials


def test_ten_answers_are_found_fault_with_no_more_often_than_two() -> None:
    """6 % of looks, however many answers; 300 trials know that to 1.4 points."""
    assert outside(10) < 0.06 + 0.045

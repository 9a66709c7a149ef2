"""Verdicts that a reading from outside found to rest on too little, and bounds that stopped an inspection."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from xarray import DataArray, Dataset

from bara_pyro.diagnostics.arviz.export import _answers
from bara_pyro.diagnostics.gates.rank import relation
from bara_pyro.diagnostics.page.render_scores import _plain
from bara_pyro.diagnostics.posterior.predictive_scores import DistributionScores, scores_of
from bara_pyro.diagnostics.posterior.trust import LeftOut
from bara_pyro.errors import ConfigError
from bara_pyro.extras.bounds import guarantees as bounds
from bara_pyro.extras.bounds.pac_bayes import gibbs_bound
from bara_pyro.extras.bounds.render import render_bounds


def false_verdicts(errors: int, rows: int = 256, trials: int = 60) -> float:
    """The share of trials in which what is independent is called related."""
    generator = torch.Generator().manual_seed(errors)
    wrong = torch.zeros(rows)
    wrong[:errors] = 1
    found = [relation(torch.rand(rows, 1, generator=generator), wrong, "error") for _ in range(trials)]
    return sum(one.verdict in ("rises with", "falls with") for one in found) / trials


@pytest.mark.parametrize("errors", [1, 2, 5, 9, 247, 255])
def test_few_errors_are_related_to_nothing(errors: int) -> None:
    """One error in 256 rows was called related in 85 % of 200 trials."""
    assert false_verdicts(errors, trials=5) == 0
    found = relation(torch.rand(256, 1), torch.arange(256) < errors, "error")
    assert found.verdict == "cannot be related to"
    assert math.isnan(found.low)


@pytest.mark.slow
def test_ten_errors_are_enough() -> None:
    """In no more than one trial of five: 5 % is meant, and 60 trials know it to 6 points."""
    assert 0 < false_verdicts(10) + false_verdicts(40) < 0.4


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
            "No difference is told; on so few rows one of up to 28 points would not be. Always giving the "
            "most frequent answer would be right 58 times in 100.",
        ),
        (4000, 2320, 0.58, "can be taken at their word"),
        (4000, 2000, 0.58, "overstate how often it is right"),
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
    for right, sure, side in ((53, 0.8, "under-confidence"), (45, 0.8, "over-confidence")):
        found = mixed(60, right, sure, sure)
        error = 2 * 100 * math.sqrt(sure * (1 - sure) / 60)
        gap = 100 * (sure - right / 60)
        assert found.gap_interval == pytest.approx((gap - error, gap + error))
        said = _plain(found)
        assert side in said
        assert all(f"{end:+.1f}" in said for end in found.gap_interval)


def test_groups_that_err_in_opposite_ways_are_not_taken_at_their_word() -> None:
    """As sure as right on the whole, and wrong wherever it is 60 % sure of 400 rows."""
    found = mixed(2000, 1600, 0.85, 0.6)
    assert found.sureness == 0
    assert found.ece > found.chance_ece_high > found.chance_ece
    assert "taken at their word" not in _plain(found)
    fine = scores_of(
        torch.tensor([[0.8, 0.2]]).double().log().expand(2000, 2), (torch.arange(2000) >= 1600).long(), 0
    )
    assert "taken at their word" in _plain(fine)


def test_what_was_learnt_by_heart_is_told_from_both_sets_of_rows() -> None:
    left = LeftOut(
        rows=128, draws=10, elpd=-0.5, se=0.03, unseen=-0.7, unseen_se=0.4, good_k=0.5, high_k=0, pareto_k={}
    )
    assert left.gap_se == pytest.approx(math.sqrt(0.03**2 + 0.4**2))


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
        found += not all(one.as_predicted for one in _answers(groups))
    return found / trials


@pytest.mark.parametrize("answers", [2, 5, 10])
def test_ten_answers_are_found_fault_with_no_more_often_than_two(answers: int) -> None:
    """6 % of looks, however many answers; 300 trials know that to 1.4 points."""
    assert outside(answers) < 0.06 + 0.045


def test_a_capless_loss_needs_no_cap() -> None:
    draws = torch.full((20, 30, 110), -math.log(110), dtype=torch.float64)
    labels = torch.zeros(30, dtype=torch.long)
    found = gibbs_bound(draws, labels, kl=1.0, loss="drawn-answer", loss_cap=4.6)
    assert found.mean == pytest.approx(109 / 110)
    with pytest.raises(ConfigError, match=r"loss_cap=4.6 must exceed log C = 4.7"):
        gibbs_bound(draws, labels, kl=1.0, loss="smoothed-nll", loss_cap=4.6)


def test_a_language_model_without_a_certificate_has_its_other_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("The certificate is about logits that are linear: take another --model.")

    monkeypatch.setattr(bounds, "_certified", refuse)
    monkeypatch.setattr(bounds, "_pac_bayes", lambda *_: None)
    gates = SimpleNamespace(phi="phi")
    context = SimpleNamespace(
        system=SimpleNamespace(model=SimpleNamespace(gates=gates), guide=SimpleNamespace(stochastic=True))
    )
    found = bounds.guarantees(context)  # type: ignore[arg-type]
    assert found is not None
    assert found.certified is None
    assert "logits that are linear" in found.not_certified
    assert any("logits that are linear" in str(block) for block in render_bounds(found).section.blocks)

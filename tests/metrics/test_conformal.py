"""Prediction sets: their rank by enumeration, their coverage by its exact law and under a known truth."""

import math

import pytest
import torch
from metric_cases import logs, random_case
from scipy.stats import beta, kstest
from torch import Tensor

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics import coverage, expected_coverage, prediction_sets
from bara_pyro.metrics.conformal import allowed, nonconformity
from bara_pyro.microworld import load_task
from bara_pyro.types import SetScore

SCORES: tuple[SetScore, ...] = ("lac", "aps")


def loop_scores(probs: list[float], score: SetScore) -> list[float]:
    if score == "lac":
        return [1 - p for p in probs]
    return [sum(other for other in probs if other > p) for p in probs]


def loop_sets(
    known: Tensor, labels: Tensor, new: Tensor, alpha: float, score: SetScore
) -> tuple[float, list[list[bool]]]:
    """The definition: the smallest score that `ceil((n + 1)(1 - alpha))` of n right answers have at most."""
    own = sorted(
        loop_scores(row, score)[label]
        for row, label in zip(known.exp().tolist(), labels.tolist(), strict=True)
    )
    q = own[math.ceil((len(own) + 1) * (1 - alpha) - 1e-9) - 1]
    # A hair above: sums of one row in another order.
    return q, [[s <= q + 1e-10 for s in loop_scores(row, score)] for row in new.exp().tolist()]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("alpha", [0.02, 0.1, 0.29, 0.5])
def test_equals_plain_loops(alpha: float, score: SetScore) -> None:
    known, labels = random_case(1, n=99)
    new, _ = random_case(2, n=60)
    q, expected = loop_sets(known, labels, new, alpha, score)
    sets = prediction_sets(known, labels, alpha=alpha, score=score)
    assert sets.threshold == pytest.approx(q)
    assert sets(new).tolist() == expected


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.4])
def test_of_exchangeable_rows_as_many_are_missed_as_may_be(alpha: float, score: SetScore) -> None:
    """Each of n + 1 rows is the new one in turn: of exchangeable rows each is equally likely to be."""
    log_probs, labels = random_case(3, n=40, sharpness=0.5)
    missed = 0
    for new in range(40):
        others = torch.arange(40) != new
        sets = prediction_sets(log_probs[others], labels[others], alpha=alpha, score=score)
        missed += not sets(log_probs[[new]])[0, labels[new]]
    assert missed == allowed(39, alpha)  # of the scores that decide no two are equal


def test_the_coverage_of_rows_to_come_has_its_beta_law() -> None:
    """Two answers, p uniform and true, so that P(1 - p(y) <= q) = 1 - (1 - q)^2 for any q."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(2000):
        p = torch.rand(39, dtype=torch.float64, generator=generator)
        labels = (torch.rand(39, generator=generator) >= p).long()
        sets = prediction_sets(torch.stack([p, 1 - p], 1).log(), labels, alpha=0.1)
        found.append(1 - (1 - sets.threshold) ** 2)
    assert sets.law == (36, 4)
    assert kstest(found, beta(*sets.law).cdf).pvalue > 0.01
    for a, b in ((37, 3), (35, 5)):  # a rank beside it
        assert kstest(found, beta(a, b).cdf).pvalue < 1e-6


@pytest.mark.parametrize("score", SCORES)
def test_coverage_under_the_microworlds_true_answers(score: SetScore) -> None:
    """Rows in random halves, answers drawn from their truth; predictions that are much too sure."""
    task = load_task("micro-arcc")
    truth = torch.tensor([row.truth for row in (*task.validation, *task.test)], dtype=torch.float64)
    log_probs = (8 * truth.log()).log_softmax(-1)
    generator = torch.Generator().manual_seed(0)
    reached, trusted = [], []
    for _ in range(200):
        order = torch.randperm(len(truth), generator=generator)
        known, new = order[:200], order[200:]
        labels = torch.multinomial(truth[known], 1, generator=generator).squeeze(1)
        sets = prediction_sets(log_probs[known], labels, alpha=0.1, score=score)(log_probs[new])
        reached.append(expected_coverage(sets, truth[new]) / 100)
        believed = nonconformity(log_probs[new], "aps") < 0.9  # what such predictions hold to be 90 %
        trusted.append(expected_coverage(believed, truth[new]) / 100)
    mean, error = torch.tensor(reached).mean(), torch.tensor(reached).std() / 200**0.5
    assert mean > 0.9 - 3 * error
    assert torch.tensor(trusted).mean() < 0.85


def test_aps_always_holds_the_answer_and_lac_may_hold_none() -> None:
    known = logs(*[[0.9, 0.06, 0.04]] * 30)
    new = logs([0.4, 0.35, 0.25], [1 / 3, 1 / 3, 1 / 3])
    labels = torch.zeros(30, dtype=torch.long)
    assert prediction_sets(known, labels, alpha=0.1, score="aps")(new).tolist() == [
        [True, False, False],
        [True, True, True],  # equally probable answers are in together
    ]
    assert not prediction_sets(known, labels, alpha=0.1, score="lac")(new).any()


def test_coverage_by_hand() -> None:
    sets = torch.tensor([[True, False], [True, True], [False, False], [False, True]])
    assert coverage(sets, [0, 1, 0, 0]) == 50.0
    truth = torch.tensor([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5], [math.nan, math.nan]])
    assert expected_coverage(sets, truth) == pytest.approx(100 * (0.7 + 1.0 + 0.0) / 3)


@pytest.mark.parametrize(
    ("rows", "alpha", "expected"),
    [(99, 0.29, 29), (9, 0.3, 3), (499, 0.05, 25), (19, 0.05, 1), (500, 0.1, 50)],
)
def test_the_rank_is_not_off_by_rounding(rows: int, alpha: float, expected: int) -> None:
    assert allowed(rows, alpha) == expected


def test_refusals() -> None:
    log_probs, labels = random_case(0, n=18)
    with pytest.raises(
        ConfigError, match=r"alpha=0.05 says nothing with 18 .* give 0.0526 or more, or 19 rows"
    ):
        prediction_sets(log_probs, labels, alpha=0.05)
    with pytest.raises(ConfigError, match=r"alpha is 1\.5"):
        prediction_sets(log_probs, labels, alpha=1.5)
    with pytest.raises(ConfigError, match="'raps'"):
        prediction_sets(log_probs, labels, alpha=0.1, score="raps")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"sets is torch\.float64"):
        coverage(log_probs, labels)
    with pytest.raises(DataError, match="No row has a known truth"):
        expected_coverage(torch.ones(2, 2, dtype=torch.bool), torch.full((2, 2), math.nan))

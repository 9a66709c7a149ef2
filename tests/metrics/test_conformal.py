"""Prediction sets and detection: ranks by enumeration, coverage and false alarms by exact distributions."""

import math

import pytest
import torch
from metric_cases import logs, random_case
from scipy.stats import beta, kstest
from torch import Tensor

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics import coverage, detector, expected_coverage, prediction_sets
from bara_pyro.metrics.conformal import allowed
from bara_pyro.types import SetScore


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


@pytest.mark.parametrize(("alpha", "score"), [(0.02, "lac"), (0.29, "lac"), (0.1, "aps"), (0.5, "aps")])
def test_equals_plain_loops(alpha: float, score: SetScore) -> None:
    known, labels = random_case(1, n=99)
    new, _ = random_case(2, n=60)
    q, expected = loop_sets(known, labels, new, alpha, score)
    sets = prediction_sets(known, labels, alpha=alpha, score=score)
    assert sets.threshold == pytest.approx(q)
    assert sets(new).tolist() == expected


@pytest.mark.parametrize(("alpha", "score"), [(0.1, "lac"), (0.4, "aps")])
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
    assert sets.coverage_beta == (36, 4)
    with pytest.warns(DeprecationWarning, match="coverage_beta"):
        assert sets.law == sets.coverage_beta
    assert kstest(found, beta(*sets.coverage_beta).cdf).pvalue > 0.01
    for a, b in ((37, 3), (35, 5)):  # a rank beside it
        assert kstest(found, beta(a, b).cdf).pvalue < 1e-6


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
        ConfigError, match=r"alpha=0.05 is too small for 18 .* give alpha=0.0526 or more, or 19 rows"
    ):
        prediction_sets(log_probs, labels, alpha=0.05)
    for alpha in (0.0, 1.0, 1.5):
        with pytest.raises(ConfigError, match=f"alpha is {alpha}"):
            prediction_sets(log_probs, labels, alpha=alpha)
    with pytest.raises(ConfigError, match="or 14 rows"):  # 14 * 0.07 < 1 <= 15 * 0.07
        allowed(13, 0.07)
    assert allowed(14, 0.07) == 1
    with pytest.raises(ConfigError, match="'raps'"):
        prediction_sets(log_probs, labels, alpha=0.1, score="raps")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"sets is a torch\.float64"):
        coverage(log_probs, labels)
    with pytest.raises(DataError, match="No row has a known truth"):
        expected_coverage(torch.ones(2, 2, dtype=torch.bool), torch.full((2, 2), math.nan))


def test_equals_a_plain_loop_with_equal_scores_among_them() -> None:
    generator = torch.Generator().manual_seed(0)
    known = torch.randint(0, 12, (50,), generator=generator).tolist()
    new = torch.randint(-1, 14, (30,), generator=generator).tolist()
    expected = [(1 + sum(k >= s for k in known)) / 51 for s in new]
    found = detector(known, alpha=0.1)
    assert found.p_values(new).tolist() == pytest.approx(expected)
    assert found(new).tolist() == [p <= 0.1 for p in expected]


@pytest.mark.parametrize("alpha", [0.05, 0.29])
def test_of_exchangeable_rows_as_many_are_called_foreign_as_may_be(alpha: float) -> None:
    scores = torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    alarms = sum(
        bool(detector(scores[torch.arange(100) != new], alpha=alpha)(scores[[new]])) for new in range(100)
    )
    assert alarms == allowed(99, alpha) == round(100 * alpha)


def test_equal_scores_raise_fewer_alarms() -> None:
    scores = torch.arange(100) // 7
    alarms = sum(
        bool(detector(scores[torch.arange(100) != new], alpha=0.1)(scores[[new]])) for new in range(100)
    )
    assert alarms == 9  # 7 of the last value, 2 of the one before are not told from its other 5
    assert not detector([0.0] * 50, alpha=0.1)([0.0]).any()


def test_the_rate_of_false_alarms_has_its_beta_distribution() -> None:
    generator = torch.Generator().manual_seed(2)
    grid = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    rates = []
    for _ in range(1000):
        found = detector(torch.rand(59, dtype=torch.float64, generator=generator), alpha=0.05)
        rates.append(float(found(grid).double().mean()))  # of uniform scores: the rate but for 1/20,000
    assert kstest(rates, beta(3, 57).cdf).pvalue > 0.01
    for a, b in ((2, 58), (4, 56)):
        assert kstest(rates, beta(a, b).cdf).pvalue < 1e-6


def test_scores_that_detect_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"alpha=0.01 is too small for 50 .* or 99 rows"):
        detector([0.1] * 50, alpha=0.01)
    with pytest.raises(DataError, match="score of row 1 is NaN"):
        detector([0.1, float("nan")], alpha=0.5)
    with pytest.raises(DataError, match="NaN"):
        detector([0.1, 0.2], alpha=0.5)([float("nan")])

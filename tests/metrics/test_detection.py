"""Rows from elsewhere: p-values by a loop, false alarms by enumeration and by their exact distribution."""

import pytest
import torch
from scipy.stats import beta, kstest

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics import detector
from bara_pyro.metrics.conformal import allowed


def test_equals_a_plain_loop_with_equal_scores_among_them() -> None:
    generator = torch.Generator().manual_seed(0)
    known = torch.randint(0, 12, (50,), generator=generator).tolist()
    new = torch.randint(-1, 14, (30,), generator=generator).tolist()
    expected = [(1 + sum(k >= s for k in known)) / 51 for s in new]
    found = detector(known, alpha=0.1)
    assert found.p_values(new).tolist() == pytest.approx(expected)
    assert found(new).tolist() == [p <= 0.1 for p in expected]


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.29])
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


def test_refusals() -> None:
    with pytest.raises(ConfigError, match=r"alpha=0.01 says nothing with 50 .* or 99 rows"):
        detector([0.1] * 50, alpha=0.01)
    with pytest.raises(DataError, match="score of row 1 is NaN"):
        detector([0.1, float("nan")], alpha=0.5)
    with pytest.raises(DataError, match="NaN"):
        detector([0.1, 0.2], alpha=0.5)([float("nan")])

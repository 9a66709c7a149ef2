"""Abstention at a stated risk: its bounds against scipy, its promise by simulation."""

from collections.abc import Callable

import pytest
import torch
from metric_cases import logs, random_case
from scipy.stats import binomtest
from torch import Tensor

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics import abstention
from bara_pyro.metrics.abstention import upper_bound


@pytest.mark.parametrize(("wrong", "rows"), [(0, 1), (0, 40), (3, 40), (39, 40), (40, 40)])
def test_the_bound_is_clopper_and_pearsons(wrong: int, rows: int) -> None:
    exact = binomtest(wrong, rows, alternative="less").proportion_ci(0.99, method="exact").high
    assert upper_bound(wrong, rows, 0.01) == pytest.approx(exact)


@pytest.mark.parametrize("seed", range(2))
def test_equals_a_plain_loop(seed: int) -> None:
    log_probs, labels = random_case(seed, n=300, sharpness=4.0)
    rows = sorted(
        (
            (max(p), p.index(max(p)) == y)
            for p, y in zip(log_probs.exp().tolist(), labels.tolist(), strict=True)
        ),
        reverse=True,
    )
    bounds = {}
    for k in range(30, 301, 30):  # the first tenth would pass without an error: all ten ranks share delta
        wrong = sum(not right for _, right in rows[:k])
        ci = binomtest(wrong, k, alternative="less").proportion_ci(1 - 0.1 / 10, method="exact")
        bounds[k] = (wrong, ci.high)
    most = max(k for k, (_, high) in bounds.items() if high <= 0.3)
    found = abstention(log_probs, labels, risk=0.3, delta=0.1)
    assert (found.answered, found.wrong) == (most, bounds[most][0])
    assert found.bound == pytest.approx(bounds[most][1])
    assert int(found(log_probs).sum()) == found.answered
    assert found.rows == 300


# Of confidence c, uniform over 0.5 to 1: P(wrong | c), and its mean over c > t.
Distribution = tuple[Callable[[Tensor], Tensor], Callable[[float], float]]
LAWS: dict[str, Distribution] = {
    "no rank tells anything": (lambda c: torch.full_like(c, 0.101), lambda t: 0.101),
    "too timid": (lambda c: 0.3 * (1 - c), lambda t: 0.15 * (1 - t)),
    "the surest tenth errs least": (
        lambda c: torch.where(c > 0.95, 0.02, 0.12),
        lambda t: 0.02 if t >= 0.95 else (0.05 * 0.02 + (0.95 - t) * 0.12) / (1 - t),
    ),
    "a dip in the middle": (
        lambda c: torch.where((c > 0.7) & (c < 0.9), 0.0, 0.15),
        lambda t: (0.15 * (1 - t) - 0.15 * max(0.0, 0.9 - max(t, 0.7))) / (1 - t),
    ),
}


def violations(
    distribution: Distribution, rows: int, risk: float, delta: float, repeats: int
) -> tuple[float, float]:
    """Return how often the promise fails and how often one is made."""
    wrong_given, risk_above = distribution
    generator = torch.Generator().manual_seed(1)
    failed = made = 0
    for _ in range(repeats):
        c = 0.5 + 0.5 * torch.rand(rows, dtype=torch.float64, generator=generator)
        wrong = torch.rand(rows, dtype=torch.float64, generator=generator) < wrong_given(c)
        try:
            found = abstention(torch.stack([c, 1 - c], 1).log(), wrong.long(), risk=risk, delta=delta)
        except DataError:
            continue
        made += 1
        failed += risk_above(max(found.threshold, 0.5)) > risk
    return failed / repeats, made / repeats


@pytest.mark.parametrize("name", LAWS)
def test_the_promise_fails_no_more_often_than_stated(name: str) -> None:
    repeats, delta = 800, 0.1
    failed, made = violations(LAWS[name], 400, 0.1, delta, repeats)
    assert failed <= delta + 3 * (delta * (1 - delta) / repeats) ** 0.5
    if name == "too timid":
        assert made > 0.9  # it errs in 7.5 % of all rows: there is something to promise
    if name == "no rank tells anything":
        assert failed == made > 0  # whatever is answered, the risk is more


def test_all_are_answered_where_all_may_be() -> None:
    log_probs = logs(*[[0.9, 0.1]] * 29)
    found = abstention(log_probs, [0] * 29, risk=0.1, delta=0.05)
    assert (found.threshold, found.answered, found.wrong) == (0.0, 29, 0)
    assert (found.risk, found.delta, found.rows) == (0.1, 0.05, 29)
    assert found(logs([0.5, 0.5])).tolist() == [True]


def test_equal_confidences_are_answered_together_or_not_at_all() -> None:
    log_probs = logs(*[[0.9, 0.1]] * 60, *[[0.6, 0.4]] * 60)
    found = abstention(log_probs, [0] * 60 + [1] * 60, risk=0.1, delta=0.05)
    assert (found.answered, found.wrong) == (60, 0)
    assert found(logs([0.61, 0.39], [0.6, 0.4])).tolist() == [True, False]


def test_refusals() -> None:
    log_probs, labels = random_case(0, n=200)
    with pytest.raises(DataError, match=r"risk of 0.1 .* of 200 rows are wrong"):
        abstention(log_probs, labels, risk=0.1)
    with pytest.raises(DataError, match=r"28 calibration rows are too few .* give 29 rows or more"):
        abstention(logs(*[[0.9, 0.1]] * 28), [0] * 28, risk=0.1, delta=0.05)
    for name, value in (("risk", 0.0), ("risk", 1.0), ("delta", 2.0)):
        with pytest.raises(ConfigError, match=f"{name}.*between 0 and 1"):
            abstention(log_probs, labels, **{"risk": 0.1, name: value})

"""Agreement with preferences by plain Python; Wilson's interval by scipy, its coverage by a sum."""

import math
import random

import numpy as np
import pytest
import torch
from reward_cases import planted
from scipy import stats

from bara_pyro.data.preferences import PreferencePair
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.replies.reward import agreement
from bara_pyro.metrics.intervals import wilson


@pytest.mark.parametrize(("right", "rows"), [(0, 5), (5, 5), (37, 60), (1, 1), (200, 1000)])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_wilson_is_scipys(right: int, rows: int, level: float) -> None:
    expected = stats.binomtest(right, rows).proportion_ci(level, method="wilson")
    low, high = wilson(100 * right / rows, rows, level)
    assert (low, high) == pytest.approx((100 * expected.low, 100 * expected.high))
    assert 0 <= low <= 100 * right / rows <= high <= 100


@pytest.mark.parametrize("rows", [20, 60, 400])
def test_wilson_covers_the_truth(rows: int) -> None:
    """By the sum over all that can happen: 95 % on average over truths, 88 % at the worst."""
    truths = np.linspace(0.3, 0.9, 61)
    ends = np.array([wilson(100 * k / rows, rows) for k in range(rows + 1)]) / 100
    inside = (ends[:, :1] <= truths) & (truths <= ends[:, 1:])
    chance = stats.binom.pmf(np.arange(rows + 1)[:, None], rows, truths)
    covered = (inside * chance).sum(axis=0)
    assert covered.mean() == pytest.approx(0.95, abs=0.01)
    assert covered.min() > 0.88


@pytest.mark.parametrize(("rate", "rows"), [(50.0, 0), (-1.0, 5), (101.0, 5), (math.nan, 5)])
def test_no_interval(rate: float, rows: int) -> None:
    with pytest.raises(DataError, match="No interval"):
        wilson(rate, rows)
    with pytest.raises(ConfigError, match="level is 2"):
        wilson(50.0, 5, 2)


def test_agreement_by_hand() -> None:
    pairs = planted(50)
    rng = random.Random(1)
    chosen = [rng.randint(-3, 3) / 2 for _ in pairs]
    rejected = [rng.randint(-3, 3) / 2 for _ in pairs]
    found = agreement(torch.tensor(chosen), torch.tensor(rejected), pairs)

    def half(a: float, b: float) -> float:
        return 1.0 if a > b else 0.5 if a == b else 0.0

    lengths = [(len(pair.chosen), len(pair.rejected)) for pair in pairs]
    rates = [half(c, r) for c, r in zip(chosen, rejected, strict=True)]
    longer = [half(c, r) for c, r in lengths]
    agree = [half((c - r) * (lc - lr), 0) for c, r, (lc, lr) in zip(chosen, rejected, lengths, strict=True)]
    margins = [c - r for c, r in zip(chosen, rejected, strict=True)]
    assert found.accuracy == pytest.approx(100 * np.mean(rates))
    assert found.longer_chosen == pytest.approx(100 * np.mean(longer))
    assert found.prefers_longer == pytest.approx(100 * np.mean(agree))
    assert found.margin == pytest.approx(np.mean(margins))
    assert found.nll == pytest.approx(np.mean([math.log1p(math.exp(-m)) for m in margins]))
    expected = stats.pearsonr(margins, [c - r for c, r in lengths]).statistic
    assert found.length_correlation == pytest.approx(expected)
    assert (found.low, found.high) == wilson(found.accuracy, 50)
    assert (found.pairs, found.prompts) == (50, len({pair.prompt for pair in pairs}))


def test_one_who_looks_at_lengths_alone_is_seen() -> None:
    pairs = [PreferencePair("p", "aa" * (i % 3), "aaa", str(i)) for i in range(30)]
    lengths = [[float(len(text)) for text in (pair.chosen, pair.rejected)] for pair in pairs]
    found = agreement(*torch.tensor(lengths).T, pairs)
    assert found.accuracy == found.longer_chosen
    assert found.prefers_longer == pytest.approx(100)
    assert found.length_correlation == pytest.approx(1)
    assert found.prompts == 1


def test_constant_scores_are_no_agreement() -> None:
    pairs = planted(8)
    found = agreement(torch.zeros(8), torch.zeros(8), pairs)
    assert (found.accuracy, found.prefers_longer, found.margin) == (50, 50, 0)
    assert found.length_correlation is None
    assert found.nll == pytest.approx(math.log(2))
    with pytest.raises(DataError, match="8 pairs and 3 scores"):
        agreement(torch.zeros(3), torch.zeros(3), pairs)

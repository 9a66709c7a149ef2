"""Agreement with preferences by plain Python."""

import math
import random

import numpy as np
import pytest
import torch
from reward_cases import planted
from scipy import stats

from bara_pyro.data.preferences import PreferencePair
from bara_pyro.errors import DataError
from bara_pyro.extras.replies.reward import agreement
from bara_pyro.metrics.intervals import wilson


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

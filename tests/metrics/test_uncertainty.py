"""Posterior predictive, decomposition of uncertainty, out-of-distribution detection."""

import math

import pytest
import torch
from metric_cases import logs, naive_auroc
from torch.testing import assert_close

from bara_pyro.errors import DataError
from bara_pyro.metrics import decompose, decompose_nested, ood_auroc, posterior_predictive


def random_draws(seed: int, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(7, 11, 4, dtype=torch.float64, generator=generator)).log_softmax(-1)


def test_probabilities_are_averaged_not_logits():
    # Mean probability of (0.98, 0.02) and (0.5, 0.5) is 0.74; the softmax of the mean logit gives 0.875.
    draws = torch.stack([logs([0.98, 0.02]), logs([0.5, 0.5])])
    assert posterior_predictive(draws).exp().squeeze(0).tolist() == pytest.approx([0.74, 0.26])
    assert float(draws.mean(0).softmax(-1)[0, 0]) == pytest.approx(0.875)


def test_predictive_of_one_draw_is_the_draw_and_of_float32_is_float64():
    draws = random_draws(0)
    assert torch.allclose(posterior_predictive(draws[:1]), draws[0], rtol=0, atol=1e-15)
    assert posterior_predictive(draws.float()).dtype == torch.float64


def test_predictive_survives_extreme_draws():
    draws = torch.tensor([[[0.0, -1e4]], [[-1e-30, -2e4]]], dtype=torch.float64)
    assert posterior_predictive(draws)[0, 1].item() == pytest.approx(-1e4 - math.log(2))
    impossible = logs([1.0, 0.0]).expand(3, 1, 2)
    assert posterior_predictive(impossible).tolist() == [[0.0, -math.inf]]


@pytest.mark.parametrize("seed", range(2))
def test_total_is_aleatoric_plus_epistemic(seed: int):
    parts = decompose(random_draws(seed))
    assert torch.allclose(parts.total, parts.aleatoric + parts.epistemic, rtol=0, atol=1e-12)
    assert (parts.epistemic > 0).all()
    assert (parts.total <= math.log(4) + 1e-12).all()


def test_decomposition_by_hand():
    # Two certain draws that contradict each other: all uncertainty is epistemic. Two coins: none is.
    certain = torch.stack([logs([1.0, 0.0]), logs([0.0, 1.0])])
    coins = logs([0.5, 0.5]).expand(2, 1, 2)
    parts = decompose(torch.cat([certain, coins], dim=1))
    assert parts.total.tolist() == pytest.approx([math.log(2)] * 2)
    assert parts.aleatoric.tolist() == pytest.approx([0.0, math.log(2)])
    assert parts.epistemic.tolist() == pytest.approx([math.log(2), 0.0])


def test_epistemic_is_the_mean_divergence_from_the_mean_prediction():
    draws = random_draws(1)
    mean = posterior_predictive(draws)
    divergence = (draws.exp() * (draws - mean)).sum(-1).mean(0)
    assert torch.allclose(decompose(draws).epistemic, divergence, rtol=0, atol=1e-12)


@pytest.mark.parametrize("copies", [1, 10])
def test_identical_draws_have_no_epistemic_uncertainty(copies: int):
    parts = decompose(random_draws(2)[:1].expand(copies, -1, -1))
    assert (parts.epistemic >= 0).all()
    assert parts.epistemic.max() < 1e-14


@pytest.mark.parametrize(
    ("seed", "scale"), [(0, 0.3), (1, 50.0)]
)  # 50: far outside 0..1, where a sigmoid would tie everything
def test_auroc_counts_pairs(seed: int, scale: float):
    generator = torch.Generator().manual_seed(seed)
    inside = (scale * torch.rand(40, generator=generator)).round(decimals=1)
    outside = (scale * (0.2 + torch.rand(30, generator=generator))).round(decimals=1)
    assert ood_auroc(inside, outside) == pytest.approx(naive_auroc(inside, outside), abs=1e-9)
    assert ood_auroc(outside, inside) == pytest.approx(100 - ood_auroc(inside, outside), abs=1e-9)


def test_auroc_extremes():
    assert ood_auroc([0.1, 0.2], [50.0, 60.0, math.inf]) == 100.0
    assert ood_auroc([50.0, 60.0], [0.1]) == 0.0
    assert ood_auroc([1.0, 1.0], [1.0]) == 50.0
    assert ood_auroc([1e-12, 2e-12], [3e-12]) == 100.0


@pytest.mark.parametrize("score", [posterior_predictive, decompose])
@pytest.mark.parametrize(
    ("draws", "words"),
    [
        (torch.zeros(0, 3, 2), "empty"),
        (torch.zeros(3, 2), "shape"),
        (torch.ones(2, 1, 2), "not logits"),
        ([[[-0.7, -0.7]], [[0.0]]], "same length"),
    ],
)
def test_unusable_draws(score, draws, words: str):
    with pytest.raises(DataError, match=words):
        score(draws)


@pytest.mark.parametrize(("inside", "words"), [([], "empty"), ([math.nan], "NaN"), ([[1.0]], "shape")])
def test_unusable_scores(inside: list, words: str):
    with pytest.raises(DataError, match=words):
        ood_auroc(inside, [1.0])


@pytest.mark.parametrize("repeats", [1, 5])
def test_nested_parts_by_loops(repeats: int) -> None:
    probs = torch.rand(10, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(repeats))
    probs = probs / probs.sum(-1, keepdim=True)
    found = decompose_nested(probs.log(), repeats)

    def entropy(p: torch.Tensor) -> float:
        return -sum(float(v) * math.log(float(v)) for v in p)

    for row in range(4):
        groups = [probs[i : i + repeats, row] for i in range(0, 10, repeats)]
        total = entropy(probs[:, row].mean(0))
        given = sum(entropy(group.mean(0)) for group in groups) / len(groups)
        inside = sum(entropy(p) for p in probs[:, row]) / 10
        assert float(found.total[row]) == pytest.approx(total, abs=1e-12)
        assert float(found.global_[row]) == pytest.approx(total - given, abs=1e-12)
        assert float(found.local[row]) == pytest.approx(given - inside, abs=1e-12)
        assert float(found.aleatoric[row]) == pytest.approx(inside, abs=1e-12)
    both = decompose(probs.log())
    assert_close(found.global_ + found.local, both.epistemic)


def test_nested_parts_need_whole_groups() -> None:
    with pytest.raises(DataError, match="10 draws cannot be split into groups of 3"):
        decompose_nested(torch.full((10, 1, 2), 0.5).log(), 3)

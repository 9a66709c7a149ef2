"""The objective of a Bayesian last layer: by hand, by loop, by quadrature and draws; what a fit finds."""

import math

import numpy as np
import pytest
import torch
from core_cases import VOCAB, make_batch
from method_cases import UNLABELLED, N, assert_same_gradients, cross_entropy, made, svi_of
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence
from transformers import AutoModelForCausalLM, Qwen2Config
from vbll_cases import (
    BOTH,
    SCALE,
    Reference,
    expected_log_likelihood,
    factors,
    log_probs_at,
    logits_and_features,
    toy,
    two_answers,
)

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.data.types import Batch
from bara_pyro.errors import DataError
from bara_pyro.guides.vbll import VBLLGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.methods.vbll import GaussianLogits, JensenELBO
from bara_pyro.models.vbll import VBLL

STEPS = 500


def dense_kl(guide: VBLLGuide, answers: int) -> Tensor:
    """KL of the rows of some answers from the prior, by torch's rule for two dense distributions."""
    q = MultivariateNormal(guide.mean[:answers], scale_tril=factors(guide)[:answers])
    width = guide.mean.shape[1]
    return kl_divergence(q, MultivariateNormal(torch.zeros(width), SCALE**2 * torch.eye(width))).sum()


def drawn(guide: VBLLGuide, seed: int) -> Tensor:
    """The rows that the guide draws first from a seed."""
    torch.manual_seed(seed)
    noise = torch.normal(torch.zeros_like(guide.mean), torch.ones_like(guide.mean))
    return guide.mean + (factors(guide) @ noise.unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize(("method", "beta"), [("vbll", 0.3), ("polar_vbll", 1.0)])
def test_the_objective_is_the_one_written_by_hand(method: str, beta: float) -> None:
    """Of five rows three are answers: the others count neither in the likelihood nor in the KL."""
    model, guide = toy(method, beta=beta)
    batch = make_batch(pad=2)
    truth = N * cross_entropy(log_probs_at(model, batch, drawn(guide, 5)[:3]), batch)
    truth = truth + beta * dense_kl(guide, 3)
    torch.manual_seed(5)
    terms = MeanFieldELBO().terms(model, guide, batch)
    assert terms.loss.item() == pytest.approx(truth.item(), rel=1e-5)
    assert terms.kl["last_layer"].item() == pytest.approx(dense_kl(guide, 3).item(), rel=1e-5)
    assert_same_gradients((model, guide), terms.loss, truth, rtol=1e-4, atol=1e-4)


def jensen_by_loop(model: VBLL, guide: VBLLGuide, batch: Batch) -> float:
    """The published bound on the mean log-likelihood, number by number."""
    base, phi = logits_and_features(model, batch)
    means, tril = guide.mean.detach().double().numpy(), factors(guide).detach().double().numpy()
    total = 0.0
    for n, label in enumerate(batch.labels.tolist()):
        exponents, own = [], 0.0
        for k in range(len(batch.answer_ids)):
            mean = base[n][k] + sum(means[k][i] * phi[n][i] for i in range(model.width))
            variance = 0.0
            for j in range(model.width):
                variance += sum(tril[k][i][j] * phi[n][i] for i in range(model.width)) ** 2
            exponents.append(mean + variance / 2)
            own = mean if k == label else own
        total += own - math.log(sum(math.exp(e) for e in exponents))
    return total / len(batch)


@pytest.mark.parametrize("method", BOTH)
def test_jensens_bound_is_the_one_of_a_plain_loop(method: str) -> None:
    model, guide = toy(method)
    batch = make_batch()
    terms = JensenELBO().terms(model, guide, batch)
    nll = -N * jensen_by_loop(model, guide, batch)
    assert terms.nll.item() == pytest.approx(nll, rel=1e-4)
    assert terms.loss.item() == pytest.approx(nll + dense_kl(guide, 3).item(), rel=1e-4)


def test_jensens_bound_is_below_the_expectation_for_two_answers() -> None:
    """By quadrature; without variance they are one."""
    rng = np.random.default_rng(0)
    means, variances = rng.normal(size=(200, 2)) * 3, rng.uniform(0, 6, size=(200, 2))
    exact = expected_log_likelihood(means[:, 0] - means[:, 1], variances.sum(-1))
    label = torch.zeros(200, dtype=torch.long)

    def bound(spread: np.ndarray) -> np.ndarray:
        return GaussianLogits(torch.tensor(means), torch.tensor(spread)).log_prob(label).numpy()

    assert (bound(variances) < exact).all()
    point = expected_log_likelihood(means[:, 0] - means[:, 1], np.zeros(200))
    np.testing.assert_allclose(bound(np.zeros((200, 2))), point, atol=1e-12)


def test_a_batch_without_labels_has_no_bound() -> None:
    with pytest.raises(DataError, match="no labels"):
        JensenELBO().terms(*toy(), UNLABELLED)


def plane() -> Backbone:
    """A language model whose last hidden states have two entries."""
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=2,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=32,
        initializer_range=1.0,
        tie_word_embeddings=False,
    )
    return Backbone(AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize("bound", ["sampled", "jensen"])
@pytest.mark.slow
def test_a_fit_finds_the_best_gaussians(bound: str) -> None:
    """Layers held, two answers, d = 2: against the minimum of the bound that scipy finds in float64.

    The mean is that of the exact posterior. The variance of the difference of two rows is too large, by a
    factor below 2: each row has its variance given the other.
    """
    torch.manual_seed(0)
    model, guide = made("vbll", frozen=plane(), r=1, num_data=20, answers=2, prior_scale=1.5)
    for adapter in model.adapters.values():
        adapter.requires_grad_(False)
    batch = two_answers()
    reference = Reference(
        *logits_and_features(model, batch), batch.labels.numpy(), 5.0, 1.5, jensen=bound == "jensen"
    )
    means, covariances = reference.best()
    svi = svi_of("vbll", (model, guide), lr=0.05, steps=STEPS)
    if bound == "sampled":
        svi.elbo = MeanFieldELBO()
    torch.manual_seed(0)
    for _ in range(STEPS):
        svi.step(batch)
    tril = factors(guide).detach().double()
    mean, covariance = guide.mean.detach().double().numpy(), (tril @ tril.mT).numpy()
    sizes = np.sqrt(covariances.diagonal(axis1=1, axis2=2))
    assert (np.abs(mean - means) < 0.1 * sizes).all()
    scaled = np.abs(covariance - covariances) / (sizes[:, :, None] * sizes[:, None, :])
    assert scaled.max() < 0.1
    if bound == "sampled":
        exact_mean, exact = reference.posterior_of_the_difference()
        assert (np.abs((means[0] - means[1]) - exact_mean) < 0.15 * np.sqrt(exact.diagonal())).all()
        ratios = np.linalg.eigvals(np.linalg.solve(exact, covariances.sum(0))).real
        assert ratios.min() > 0.98
        assert ratios.max() < 2.02

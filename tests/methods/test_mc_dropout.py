"""MC-dropout: the mask's distribution, the loss under it, its mean, and runs."""

import pyro
import pytest
import torch
from core_cases import backbone, make_batch, randomise
from method_cases import ALPHA, N, R, assert_same_gradients, assert_same_mean, cross_entropy, plain_log_probs
from pyro import poutine
from pyro.infer import Trace_ELBO
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from bara_pyro.core.adapter import Adapter
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.prediction import predict
from bara_pyro.errors import ConfigError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.prior import PriorGuide
from bara_pyro.models.dropout import DropoutLoRA
from bara_pyro.models.lora import LoRA

P = 0.3


def toy(p: float = P, **options: object) -> tuple[DropoutLoRA, PriorGuide]:
    torch.manual_seed(1)
    model = randomise(DropoutLoRA(backbone(), N, r=R, p=p, **options))
    return model, PriorGuide(model)


def plain_loss(model: DropoutLoRA, masks: dict[str, Tensor]) -> Tensor:
    """N times the mean cross-entropy with the given masks, in plain torch."""

    def change(a: Adapter, x: Tensor) -> Tensor:
        return ALPHA / R * (x * masks[f"keep/{a.target.path}"] / (1 - P)) @ a.lora_A.T @ a.lora_B.T

    return N * cross_entropy(plain_log_probs(model, make_batch(), change), make_batch())


def test_the_loss_is_that_of_plain_torch_under_the_same_masks() -> None:
    model, guide = toy()
    with poutine.trace() as trace:
        terms = MeanFieldELBO().terms(model, guide, make_batch())
    masks = {n: s["value"] for n, s in trace.trace.nodes.items() if n.startswith("keep/")}
    assert masks.keys() == model.latents.local_sites.keys()
    truth = plain_loss(model, masks)
    # The posterior is the prior: the loss is the likelihood alone, though tokens of padding are masked too.
    assert terms.kl == {}
    assert_close(terms.loss, terms.nll, rtol=0, atol=0)
    assert_close(terms.loss, truth, rtol=1e-5, atol=0)
    assert_same_gradients((model, guide), terms.loss, truth, share=1e-4)


def test_stock_pyro_gives_the_same_loss_and_gradient() -> None:
    # Trace_ELBO: a mask has no reparameterised draw, and its score has nothing to learn from.
    model, guide = toy()
    pyro.set_rng_seed(3)
    ours = MeanFieldELBO().terms(model, guide, make_batch()).loss
    pyro.set_rng_seed(3)
    stock = Trace_ELBO().differentiable_loss(model, guide, make_batch())
    assert_close(ours, stock, rtol=1e-5, atol=0)
    assert_same_gradients((model, guide), ours, stock, atol=1e-3)


def test_without_draws_it_is_lora() -> None:
    model, guide = toy()
    plain = LoRA(backbone(), N, r=R)
    plain.load_state_dict(model.state_dict())
    ours = predict(model, guide, make_batch(), samples=0)
    assert_close(ours, predict(plain, DeltaGuide(plain), make_batch(), samples=0), rtol=0, atol=1e-5)
    draws = predict(model, guide, make_batch(), samples=5)
    assert (draws.std(0) > 1e-3).all()


def test_without_dropout_it_is_lora() -> None:
    model, guide = toy(p=0.0)
    plain = LoRA(backbone(), N, r=R)
    plain.load_state_dict(model.state_dict())
    truth = MeanFieldELBO().terms(plain, DeltaGuide(plain), make_batch()).loss
    assert_close(MeanFieldELBO().terms(model, guide, make_batch()).loss, truth, rtol=1e-6, atol=0)
    draws = predict(model, guide, make_batch(), samples=3)
    assert_close(draws, draws[:1].expand(3, -1, -1), rtol=0, atol=1e-6)


def test_draws_are_those_of_torchs_dropout() -> None:
    """Our predictive against torch's own dropout in front of A: mean and variance of the probabilities."""
    model, guide = toy()
    draws = 2000
    ours = predict(model, guide, make_batch(), samples=draws)
    many = make_batch(choose=[0, 1, 2, 3] * draws)  # all draws in one forward
    with torch.no_grad():
        log_probs = plain_log_probs(
            model, many, lambda a, x: ALPHA / R * F.dropout(x, P) @ a.lora_A.T @ a.lora_B.T
        )
    theirs = log_probs.double().unflatten(0, (draws, 4))
    assert_same_mean(ours, theirs, least=0.02)
    assert ((ours.exp().var(0) / theirs.exp().var(0)).log().abs() < 0.35).all()


def test_dropping_everything_is_refused() -> None:
    with pytest.raises(ConfigError, match="p=1"):
        DropoutLoRA(backbone(), N, p=1.0)

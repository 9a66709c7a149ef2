"""Layers that are given one input: one product, one draw, and what each would have had by itself."""

from collections.abc import Iterator

import pytest
import torch
from core_cases import backbone, bara_pair, make_batch, randomise
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.guides import amortized
from bara_pyro.guides.gamma import GammaGuide
from bara_pyro.guides.lognormal import LogNormalGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRAAdapter
from bara_pyro.models.lora import LoRA

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "lm_head"]
R = 3


def step(**options: object) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Loss, divergences and gradients of one evaluation, and a prediction."""
    torch.manual_seed(2)
    options = {"r": R, "target_modules": TARGETS, "beta_theta": 0.1, **options}
    model, guide = bara_pair(scale=0.3, move=0.1, **options)
    torch.manual_seed(3)
    terms = MeanFieldELBO().terms(model, guide, make_batch())
    terms.loss.backward()
    parameters = [*model.named_parameters(), *guide.named_parameters()]
    found = {"probabilities": predict(model, guide, make_batch(), samples=3).exp()}
    return terms.loss, terms.kl, {name: p.grad for name, p in parameters} | found


def same(one: tuple, other: tuple) -> None:
    assert_close(one[0], other[0], rtol=1e-5, atol=0)
    assert list(one[1]) == list(other[1])
    for name, kl in one[1].items():
        assert_close(kl, other[1][name], rtol=1e-5, atol=1e-5)
    for name, value in one[2].items():
        size = other[2][name].abs().max()
        assert_close(value, other[2][name], rtol=1e-4, atol=1e-5 * float(size) + 1e-8)


@pytest.mark.parametrize("form", ["additive", "gate"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"guide": LogNormalGuide},
        {"guide": GammaGuide},
        {"fit": {"shape": "k", "max_kappa": 5.0}},
        {"fit": {"shape_width": "scalar"}},
        {"fit": {"activation": "topk", "top_k": 2}},
        {"rank_pattern": {"model.layers.0.self_attn.q_proj": 2}},
        {"rank_pattern": {f"model.layers.0.self_attn.{n}_proj": 2 for n in "qkv"}},
    ],
    ids=["weibull", "lognormal", "gamma", "k", "scalar", "topk", "one rank", "smaller rank"],
)
def test_together_is_each_by_itself(form: str, options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    together = step(form=form, **options)
    monkeypatch.setattr(amortized, "ONE_INPUT", ())
    same(together, step(form=form, **options))


@pytest.fixture
def apart() -> Iterator[None]:
    """Every value projection is given a tensor of its own, equal to what it would have been given."""
    layers = [layer.self_attn.v_proj for layer in backbone().lm.model.layers]
    handles = [layer.register_forward_pre_hook(lambda _, args: (args[0].clone(),)) for layer in layers]
    yield
    for handle in handles:
        handle.remove()


def test_another_input_after_all(apart: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal values in another tensor: nobody takes the posterior that was made for the first one."""
    torch.manual_seed(2)
    model, guide = bara_pair(r=R, scale=0.3, move=0.1)
    asked = []
    plain = guide._amortised
    monkeypatch.setattr(guide, "_amortised", lambda names, x: asked.append(names) or plain(names, x))
    MeanFieldELBO().terms(model, guide, make_batch())
    assert [len(names) for names in asked] == [2, 1, 2, 1, 1]
    assert not guide._ahead


def products(model: AdaptedLM, guide: object, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []
    plain = guide._amortised
    monkeypatch.setattr(guide, "_amortised", lambda names, x: asked.append(len(names)) or plain(names, x))
    MeanFieldELBO().terms(model, guide, make_batch())
    return asked


def test_one_product_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    model, guide = bara_pair(r=R, target_modules=TARGETS)
    # Query, key and value; the output projection, whose width is the same; gate and up; the head.
    assert products(model, guide, monkeypatch) == [3, 1, 2, 3, 1, 2, 1]


@pytest.mark.parametrize("options", [{}, {"rank_pattern": {"model.layers.0.self_attn.q_proj": 2}}])
def test_the_down_projection_comes_of_that_product(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training, in the gate form; with the loss and the gradients that it has by itself."""
    together = step(form="gate", **options)
    with monkeypatch.context() as patched:
        patched.setattr(BaRAAdapter, "times_input", lambda self, x: x @ self.lora_A.T)
        same(together, step(form="gate", **options))
    model, guide = bara_pair(r=R, form="gate", target_modules=TARGETS)
    asked: list[Tensor] = []
    plain = F.linear
    monkeypatch.setattr(F, "linear", lambda x, weight, *bias: asked.append(weight) or plain(x, weight, *bias))
    MeanFieldELBO().terms(model, guide, make_batch())
    assert not any(weight is own.lora_A for weight in asked for own in model.adapters.values())
    assert not any(own.product_ahead for own in model.adapters.values())
    predict(model, guide, make_batch(), samples=2)
    assert all(any(weight is own.lora_A for weight in asked) for own in model.adapters.values())


def test_layers_without_kin(monkeypatch: pytest.MonkeyPatch) -> None:
    model, guide = bara_pair("gpt2", r=R)
    assert set(products(model, guide, monkeypatch)) == {1}


def test_a_family_of_ones_own_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subclass that replaces `family` is not passed over for the node of the usual one."""
    calls = []

    class Own(WeibullGuide):
        def family(self, mean: Tensor, kappa: Tensor) -> torch.distributions.Distribution:
            calls.append(mean.shape)
            return super().family(mean, kappa)

    MeanFieldELBO().terms(*bara_pair(guide=Own, r=R), make_batch())
    assert len(calls) == 6  # phi and five layers


def test_other_programs_are_given_tensors_of_their_own() -> None:
    """Sharing one would add their gradients up in another order, and change the last digits."""
    seen: list[Tensor] = []
    model = randomise(LoRA(backbone(), 4, r=R))
    for adapter in model.adapters.values():
        plain = adapter.shrink
        adapter.shrink = lambda x, *rest, plain=plain: seen.append(x) or plain(x, *rest)
    assert isinstance(model, nn.Module)
    model(make_batch())
    assert len({id(x) for x in seen}) == len(seen) == 5

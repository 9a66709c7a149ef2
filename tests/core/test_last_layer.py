"""Training runs the last layer for the tokens that are asked alone: the same bound, the same gradient."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from core_cases import CONFIGS, make_batch, make_lm, randomise
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.backbone import Backbone
from bara_pyro.core.elbo import ElboTerms, MeanFieldELBO
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.program import AdaptedLM
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA
from bara_pyro.models.lora import LoRA

# Beyond the default (query and value), modules that come after attending.
TARGETS = {"default": None, "all": "all-linear"}


def pair(method: str, arch: str, targets: str | None = None) -> tuple[AdaptedLM, SiteGuide]:
    torch.manual_seed(2)
    backbone = Backbone(make_lm(arch))
    if method == "lora":
        model = LoRA(backbone, 4, r=3, target_modules=targets)
        return randomise(model), DeltaGuide(model)
    model = BaRA(backbone, 4, r=3, form=method, beta_theta=1.0, target_modules=targets)
    return randomise(model), WeibullGuide(model)


@contextmanager
def tokens_seen(model: AdaptedLM) -> Iterator[list[int]]:
    """Note how many tokens the last layer's feed-forward is given."""
    seen: list[int] = []
    parts = dict(model.backbone.states.layers[-1].named_modules())
    handle = parts["mlp"].register_forward_hook(lambda _, args, out: seen.append(args[0].shape[1]))
    yield seen
    handle.remove()


def bound(model: AdaptedLM, guide: SiteGuide, **loss: int) -> tuple[ElboTerms, list[Tensor]]:
    torch.manual_seed(0)
    terms = MeanFieldELBO(**loss).terms(model, guide, make_batch())
    terms.loss.backward()
    own = [p for module in (model, guide) for p in module.parameters()]
    grads = [p.grad for p in own if p.grad is not None]
    for p in own:
        p.grad = None
    return terms, grads


@pytest.mark.parametrize("arch", CONFIGS)
@pytest.mark.parametrize("method", ["lora", "additive", "gate"])
@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize(
    "loss", [{}, {"num_particles": 2, "vectorize_particles": True, "max_plate_nesting": 2}]
)
def test_bound_and_gradient_are_those_of_all_tokens(
    arch: str, method: str, targets: str, loss: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, guide = pair(method, arch, TARGETS[targets])
    width = make_batch().input_ids.shape[1]
    with tokens_seen(model) as seen:
        terms, grads = bound(model, guide, **loss)
        assert set(seen) == ({1} if targets == "default" else {width})
        seen.clear()
        monkeypatch.setattr(model, "_run_twice", None)
        whole, expected = bound(model, guide, **loss)
        assert set(seen) == {width}
    assert_close(terms.loss, whole.loss, rtol=1e-6, atol=1e-6)
    assert terms.kl.keys() == whole.kl.keys()
    for site, kl in terms.kl.items():
        assert_close(kl, whole.kl[site], rtol=1e-6, atol=1e-6)
    largest = max(float(value.abs().max()) for value in expected)
    for found, value in zip(grads, expected, strict=True):
        assert_close(found, value, rtol=1e-5, atol=1e-6 * largest)


def test_a_layer_that_attends_to_nothing_known_is_run_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys and values are not shown, which four tokens tell when the program is made."""
    monkeypatch.setattr(Backbone, "read_last", lambda *args, **options: None)
    model, guide = pair("additive", "llama")
    with tokens_seen(model) as seen:
        bound(model, guide)
    assert set(seen) == {make_batch().input_ids.shape[1]}

"""Activation checkpointing: the gradient to the last digit, less kept, the latents that were drawn."""

import pytest
import torch
from core_cases import CONFIGS, make_batch, make_lm, pairwise, trainer
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.program import AdaptedLM
from bara_pyro.errors import BackboneError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.prior import PriorGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.models.bara import BaRA
from bara_pyro.models.dropout import DropoutLoRA
from bara_pyro.models.lora import LoRA

UPPER = r".*\.1\..*(q_proj|v_proj|query_key_value|c_attn)"
METHODS = {
    "lora": lambda backbone, **options: (model := LoRA(backbone, 4, r=3, **options), DeltaGuide(model)),
    "additive": lambda backbone, **options: (model := BaRA(backbone, 4, r=3, **options), WeibullGuide(model)),
    "gate": lambda backbone, **options: (
        model := BaRA(backbone, 4, r=3, form="gate", **options),
        WeibullGuide(model),
    ),
    "dropout": lambda backbone, **options: (
        model := DropoutLoRA(backbone, 4, r=3, **options),
        PriorGuide(model),
    ),
}


def pair(method: str, arch: str, dtype: torch.dtype, *, on: bool, targets: str | None = None):
    torch.manual_seed(2)
    backbone = Backbone(make_lm(arch, dtype))
    backbone.checkpointing = on
    model, guide = METHODS[method](backbone, target_modules=targets)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("lora_B"):
                value.normal_(std=0.3)
    return model, guide


def gradients(model: AdaptedLM, guide: nn.Module, **loss: int) -> list[Tensor]:
    torch.manual_seed(0)
    MeanFieldELBO(**loss).terms(model, guide, make_batch()).loss.backward()
    return [p.grad for p in (*model.parameters(), *guide.parameters()) if p.grad is not None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "method", "dtype", "targets"),
    pairwise(CONFIGS, METHODS, [torch.float32, torch.bfloat16], [None, "all-linear", UPPER]),
)
def test_the_gradient_is_the_same_to_the_last_digit(
    arch: str, method: str, dtype: torch.dtype, targets: str | None
) -> None:
    plain = gradients(*pair(method, arch, dtype, on=False, targets=targets))
    again = gradients(*pair(method, arch, dtype, on=True, targets=targets))
    assert len(plain) == len(again)
    assert any(value.abs().max() > 1e-3 for value in plain)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_several_forwards_before_a_backward_keep_their_own_draws() -> None:
    plain = gradients(*pair("gate", "qwen2", torch.float32, on=False), num_particles=3)
    again = gradients(*pair("gate", "qwen2", torch.float32, on=True), num_particles=3)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_one_forward_has_several_backward_passes() -> None:
    found = []
    for on in (False, True):
        model, guide = pair("gate", "qwen2", torch.float32, on=on)
        torch.manual_seed(0)
        loss = MeanFieldELBO().terms(model, guide, make_batch()).loss
        weights = [p for p in model.parameters() if p.requires_grad]
        first, second = (torch.autograd.grad(loss, weights, retain_graph=True) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        found.append(first)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_training_is_the_same_to_the_last_digit() -> None:
    ends = []
    for on in (False, True):
        fitted = pair("gate", "llama", torch.float32, on=on)
        svi = trainer(fitted)
        torch.manual_seed(0)
        for _ in range(3):
            svi.step(make_batch())
        ends.append([p.detach() for p in svi.parameters])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def kept(method: str, *, on: bool) -> int:
    """Numbers that autograd keeps between forward and backward."""
    model, guide = pair(method, "qwen2", torch.float32, on=on)
    storages: dict[int, int] = {}

    def pack(value: Tensor) -> Tensor:
        storages[value.untyped_storage().data_ptr()] = value.numel()
        return value.detach()

    layers = model.backbone.states.layers
    rows = make_batch(pad=20)
    with saved_tensors_hooks(pack, lambda value: value):
        loss = MeanFieldELBO().terms(model, guide, rows).loss
    assert layers
    loss.backward()
    return sum(storages.values())


@pytest.mark.parametrize("method", ["lora", "gate"])
def test_less_is_kept(method: str) -> None:
    assert kept(method, on=True) < 0.5 * kept(method, on=False)


def test_nothing_stays_on_the_language_model() -> None:
    model, guide = pair("gate", "qwen2", torch.float32, on=True)
    gradients(model, guide)
    for module in model.backbone.lm.modules():
        assert not module._forward_hooks
        assert "forward" not in vars(module)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning")
def test_the_models_own_switch_is_taken_over() -> None:
    lm = make_lm("qwen2")
    lm.gradient_checkpointing_enable()
    backbone = Backbone(lm)
    assert backbone.checkpointing
    model = BaRA(backbone, 4, r=3)
    svi = trainer((model, WeibullGuide(model)))
    svi.step(make_batch())
    lm.train()  # now transformers' own would run, which knows nothing of the adapters
    with pytest.raises(BackboneError, match=r"call eval\(\)"):
        svi.step(make_batch())

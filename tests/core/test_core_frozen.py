"""The language model is borrowed: its weights, outputs, hooks and gradients are left as they were."""

import pytest
import torch
from core_cases import CONFIGS, backbone, bara_pair, lora_pair, make_batch, plain_forward, randomise, trainer
from torch import nn

from bara_pyro.core.prediction import predict
from bara_pyro.core.svi import SVI
from bara_pyro.data.types import Batch
from bara_pyro.lm.backbone import Backbone
from bara_pyro.models.lora import LoRA


def hooks(lm: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in lm.modules() for kind in kinds)


@pytest.mark.parametrize("arch", CONFIGS)
def test_training_and_prediction_leave_the_backbone_bit_for_bit(arch: str) -> None:
    frozen, batch = backbone(arch), make_batch()
    weights = {name: value.clone() for name, value in frozen.lm.state_dict().items()}
    with torch.no_grad():
        before = plain_forward(batch, frozen.lm)
    assert hooks(frozen.lm) == 0
    pair = bara_pair(arch, scale=0.3, form="gate")
    svi = trainer(pair, 0.1)
    for _ in range(3):
        svi.step(batch)
    predict(*pair, batch, samples=2)
    with torch.no_grad():
        after = plain_forward(batch, frozen.lm)
    assert torch.equal(before, after)
    assert hooks(frozen.lm) == 0
    for name, value in frozen.lm.state_dict().items():
        assert torch.equal(value, weights[name]), name
    for name, value in frozen.lm.named_parameters():
        assert value.grad is None, name
        assert not value.requires_grad, name


def test_an_exception_inside_leaves_no_hook(
    qwen: Backbone, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = lora_pair()
    with torch.no_grad():
        before = plain_forward(batch, qwen.lm)
    seen = []

    def fail(*args: object) -> None:
        seen.append(hooks(qwen.lm))
        raise RuntimeError("inside")

    monkeypatch.setattr(list(model.adapters.values())[2], "shrink", fail)
    with pytest.raises(RuntimeError, match="inside"):
        model(batch)
    assert seen == [4]  # the body's adapters: the head needs none
    assert hooks(qwen.lm) == 0
    with torch.no_grad():
        assert torch.equal(before, plain_forward(batch, qwen.lm))


def test_a_hook_of_the_user_survives(qwen: Backbone, batch: Batch) -> None:
    model, _ = lora_pair()
    calls = []
    layer = qwen.lm.get_submodule(model.targets[0].path)
    handle = layer.register_forward_hook(lambda *_: calls.append(1))
    try:
        model(batch)
        model(batch)
    finally:
        handle.remove()
    assert len(calls) == 2


def test_two_programs_on_one_backbone_do_not_meet(qwen: Backbone, batch: Batch) -> None:
    one, two = randomise(LoRA(qwen, 4, r=3), seed=1), randomise(LoRA(qwen, 4, r=3), seed=2)
    with torch.no_grad():
        first = one.forward(batch)
        two.forward(batch)
        assert torch.equal(first, one.forward(batch))
        assert not torch.allclose(first, two.forward(batch))


@pytest.mark.parametrize("form", ["lora", "additive", "gate"])
def test_every_trainable_parameter_and_nothing_else_gets_a_gradient(
    qwen: Backbone, batch: Batch, form: str
) -> None:
    model, guide = lora_pair(scale=0.0) if form == "lora" else bara_pair(form=form)
    svi = SVI(model, guide, torch.optim.SGD([*model.parameters(), *guide.parameters()], lr=1e-3))
    for step in range(2):
        svi.step(batch)
        for module in (model, guide):
            for name, value in module.named_parameters():
                # B = 0 at the start: nothing reaches A until the first step has moved B.
                expected = not (step == 0 and name.endswith("lora_A"))
                assert bool(value.grad.abs().sum() > 0) == expected, (step, name)
    trained = {id(value) for group in svi.optim.param_groups for value in group["params"]}
    assert not trained & {id(value) for value in qwen.lm.parameters()}
    assert not {id(value) for value in model.parameters()} & {id(value) for value in qwen.lm.parameters()}


def test_the_program_does_not_hold_the_backbone_as_a_module() -> None:
    model, guide = bara_pair()
    sizes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    assert sizes == {
        **{
            f"adapters.model/layers/{i}/self_attn/{n}_proj.lora_B": (d, 3)
            for i in range(2)
            for n, d in (("q", 16), ("v", 8))
        },
        "adapters.lm_head.lora_B": (61, 3),
    }
    assert sum(p.numel() for p in guide.parameters()) == 5 * 2 * 3 + 5 * 2 * 3 * 16

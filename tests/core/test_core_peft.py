"""Our LoRA program and PEFT's LoRA model with the same weights give the same answers."""

import copy

import pytest
import torch
from core_cases import backbone, lora_pair, make_batch, mean_forward, plain_forward
from torch.testing import assert_close

peft = pytest.importorskip("peft")

CASES = [
    ("qwen2", ["q_proj", "v_proj", "lm_head"]),
    ("qwen2-tied", ["q_proj", "v_proj", "down_proj"]),
    ("gpt2", ["c_attn", "c_fc", "attn.c_proj"]),
]


# PEFT reads a name that transformers deprecates; nothing of ours.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize(("arch", "names"), CASES)
def test_same_weights_same_answers(arch: str, names: list[str]) -> None:
    batch = make_batch()
    model, guide = lora_pair(arch, lora_alpha=6, target_modules=names)
    config = peft.LoraConfig(
        r=3,
        lora_alpha=6,
        lora_dropout=0.0,
        target_modules=[t.path for t in model.targets],
        fan_in_fan_out=arch == "gpt2",
    )
    other = peft.get_peft_model(copy.deepcopy(backbone(arch).lm), config).eval()
    for target in model.targets:
        layer = other.base_model.model.get_submodule(target.path)
        own = model.adapters[target.path.replace(".", "/")]
        with torch.no_grad():
            layer.lora_A["default"].weight.copy_(own.lora_A)
            layer.lora_B["default"].weight.copy_(own.lora_B)
    with torch.no_grad():
        truth = plain_forward(batch, other)
        unadapted = plain_forward(batch, backbone(arch).lm)
    assert_close(mean_forward(model, guide, batch), truth, rtol=0, atol=1e-5)
    assert (truth - unadapted).abs().max() > 1e-2
    count = sum(p.numel() for p in other.parameters() if p.requires_grad)
    assert sum(p.numel() for p in model.parameters()) == count


def test_same_initial_law_of_a() -> None:
    # PEFT draws A uniformly on +-1/sqrt(in): same support, same variance (1 / (3 in)).
    model, _ = lora_pair(r=512, scale=0.0, target_modules=["q_proj"])
    down = next(iter(model.adapters.values())).lora_A.detach()
    assert down.abs().max() <= 16**-0.5
    error = (4 / 45) ** 0.5 / 16 / down.numel() ** 0.5  # the variance of u^2 is 4/45 for u ~ U(-1, 1)
    assert abs(down.square().mean() - 1 / 48) < 4 * error
    assert not next(iter(model.adapters.values())).lora_B.any()

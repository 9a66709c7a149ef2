"""Our LoRA program and PEFT's LoRA model with the same weights give the same answers."""

import copy
from dataclasses import replace

import pytest
import torch
from core_cases import backbone, lora_pair, make_batch, mean_forward, plain_forward
from torch.testing import assert_close

from bara_pyro.core.posterior import PosteriorMean

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


# PEFT warns that merging such an adapter would need the two untied.
@pytest.mark.filterwarnings("ignore:Model has `tie_word_emb")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("arch", ["llama-tied", "qwen2-tied"])
def test_tied_embeddings_give_pefts_logits_and_gradients(arch: str) -> None:
    """The output embedding is adapted by default; the input embedding keeps the frozen weights."""
    batch = make_batch()
    model, guide = lora_pair(arch, lora_alpha=6)
    lm = model.backbone.lm
    assert lm.get_input_embeddings().weight is lm.get_output_embeddings().weight
    assert any(target.is_head for target in model.targets)
    before = lm.get_input_embeddings()(batch.input_ids)
    other = peft.get_peft_model(
        copy.deepcopy(lm),
        peft.LoraConfig(
            r=3,
            lora_alpha=6,
            lora_dropout=0.0,
            target_modules=[t.path for t in model.targets],
        ),
    ).eval()
    theirs = {}
    for target in model.targets:
        layer = other.base_model.model.get_submodule(target.path)
        own = model.adapters[target.path.replace(".", "/")]
        for name in ("lora_A", "lora_B"):
            theirs[target.path, name] = getattr(layer, name)["default"].weight
            with torch.no_grad():
                theirs[target.path, name].copy_(getattr(own, name))
    with PosteriorMean(guide):
        ours = model.forward(replace(batch, labels=None))
    truth = plain_forward(batch, other)
    assert_close(ours, truth, rtol=0, atol=1e-5)
    for log_probs in (ours, truth):
        torch.nn.functional.nll_loss(log_probs, batch.labels).backward()
    for (path, name), value in theirs.items():
        own = getattr(model.adapters[path.replace(".", "/")], name)
        assert_close(own.grad, value.grad, rtol=1e-4, atol=1e-6)
        assert value.grad.abs().max() > 1e-4
    assert lm.get_input_embeddings().weight.grad is None
    for model_of in (lm, other):  # what comes in is what came in before
        assert torch.equal(model_of.get_input_embeddings()(batch.input_ids), before)


def test_same_initial_distribution_of_a() -> None:
    # PEFT draws A uniformly on +-1/sqrt(in): same support, same variance (1 / (3 in)).
    model, _ = lora_pair(r=512, scale=0.0, target_modules=["q_proj"])
    down = next(iter(model.adapters.values())).lora_A.detach()
    assert down.abs().max() <= 16**-0.5
    error = (4 / 45) ** 0.5 / 16 / down.numel() ** 0.5  # the variance of u^2 is 4/45 for u ~ U(-1, 1)
    assert abs(down.square().mean() - 1 / 48) < 4 * error
    assert not next(iter(model.adapters.values())).lora_B.any()

"""The answer head: last position and answer rows only, or the whole vocabulary: the same probabilities."""

import pytest
import torch
from core_cases import CONFIGS, backbone, bara_pair, lora_pair, make_batch, mean_forward, plain_forward
from torch.testing import assert_close

from bara_pyro.core.prediction import predict


@pytest.mark.parametrize("arch", CONFIGS)
def test_a_new_adapter_changes_nothing(arch: str) -> None:
    batch = make_batch()
    with torch.no_grad():
        truth = plain_forward(batch, backbone(arch).lm)
    assert_close(mean_forward(*bara_pair(arch), batch), truth, rtol=0, atol=2e-6)


@pytest.mark.parametrize("arch", CONFIGS)
def test_rows_only_equals_full_vocabulary(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, guide = bara_pair(arch, seed=5, scale=0.3, form="gate")
    assert model.targets[-1].is_head
    alone = predict(model, guide, make_batch(), samples=3)
    monkeypatch.setattr(model.backbone, "shortcuts", model.backbone.shortcuts - {"answer_rows"})
    assert_close(predict(model, guide, make_batch(), samples=3), alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("arch", CONFIGS)
def test_only_the_answers_rows_of_the_head_have_a_gradient(arch: str) -> None:
    batch = make_batch()
    model, _ = lora_pair(arch)
    model.forward(batch)[torch.arange(4), batch.labels].sum().backward()
    grads = {name: value.grad for name, value in model.named_parameters()}
    head = next(
        grad for name, grad in grads.items() if ("head" in name or "embed_out" in name) and "B" in name
    )
    touched = head.abs().sum(-1).nonzero().flatten().tolist()
    assert touched == sorted(batch.answer_ids.tolist())


def test_an_adapter_on_the_head_alone() -> None:
    batch = make_batch()
    model, guide = lora_pair("qwen2-tied", target_modules=["lm_head"])
    head = model.adapters["lm_head"]
    with torch.no_grad():
        last = backbone("qwen2-tied").hidden(batch.input_ids, batch.attention_mask)[:, -1]
        weight = backbone("qwen2-tied").lm.lm_head.weight + 16 / 3 * head.lora_B @ head.lora_A
        truth = (last @ weight.T)[:, batch.answer_ids].log_softmax(-1)
    assert_close(mean_forward(model, guide, batch), truth, rtol=0, atol=1e-5)

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
@pytest.mark.parametrize("form", ["additive", "gate"])
def test_rows_only_equals_full_vocabulary(arch: str, form: str) -> None:
    batch = make_batch()
    out = []
    for full in (False, True):
        pair = bara_pair(arch, seed=5, scale=0.3, form=form, full_vocab=full)
        assert pair[0].targets[-1].is_head
        out.append(predict(*pair, batch, samples=3))
    assert_close(out[0], out[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("arch", CONFIGS)
def test_gradients_of_the_head_agree_too(arch: str) -> None:
    batch = make_batch()
    grads = []
    for full in (False, True):
        torch.manual_seed(5)
        model, _ = lora_pair(arch, full_vocab=full)
        model.forward(batch)[torch.arange(4), batch.labels].sum().backward()
        grads.append({name: value.grad for name, value in model.named_parameters()})
    for name, grad in grads[0].items():
        assert_close(grad, grads[1][name], rtol=1e-4, atol=1e-5, msg=name)
    head = next(
        grad for name, grad in grads[0].items() if ("head" in name or "embed_out" in name) and "B" in name
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

"""Every type that frozen weights can have: adapters in float32, gradients of the weights as stored."""

import math
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from app_cases import Place, word_tokenizer
from family_cases import make_lm
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from whole_case import check_trained_saved_read_and_detached, own_logits

from bara_pyro import errors
from bara_pyro.data import training_batches
from bara_pyro.errors import BackboneError
from bara_pyro.lm import quantized
from bara_pyro.lm.loading import DTYPES, load_backbone
from bara_pyro.runs.config import load_config
from bara_pyro.runs.steps import make_svi
from bara_pyro.runs.system import build_system
from bara_pyro.types import WeightType

IDS = torch.tensor([[6, 7, 8, 9, 10, 11], [3, 4, 5, 12, 4, 3]])
needs = {
    name: pytest.mark.skipif(
        any(find_spec(package) is None for package in packages), reason=f"{packages[0]} is not installed"
    )
    for name, packages in quantized.PACKAGES.items()
}
QUANTIZED = [pytest.param(name, marks=needs[name]) for name in quantized.PACKAGES]
EVERY = [*DTYPES, *QUANTIZED]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers, 64 wide: what one block of 4-bit weights is."""
    out = tmp_path_factory.mktemp("lm")
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(word_tokenizer()),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(out)
    word_tokenizer().save_pretrained(out)
    return out


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.slow
def test_trained_saved_read_and_detached(dtype: str, folder: Path, place: Place, tmp_path: Path) -> None:
    check_trained_saved_read_and_detached(folder, place, tmp_path / "run", IDS, dtype)


def weights(lm: nn.Module) -> dict[str, Tensor]:
    """Everything the model holds, of int8 weights their integers and scales."""
    found = {}
    for name, value in lm.state_dict().items():
        parts = {"": value} if not hasattr(value, "qdata") else {".qdata": value.qdata, ".scale": value.scale}
        found |= {name + part: tensor.clone() for part, tensor in parts.items()}
    return found


@pytest.mark.parametrize("dtype", EVERY)
def test_what_is_learned_and_drawn_is_float32(dtype: str, folder: Path, place: Place) -> None:
    settings = {"backbone.name": str(folder), "backbone.dtype": dtype, "task.name": str(place.rows)}
    system = build_system(load_config(overrides={**settings, "method.name": "bara-gate"}))
    model, guide, split = system.model, system.guide, system.split("train")
    frozen = weights(system.backbone.lm)
    svi = make_svi(system)
    for step in range(3):
        loss = svi.step(split.batch(training_batches(len(split), 4, seed=0, step=step), system.answer_ids))
        assert math.isfinite(loss)
    trace, _ = guide.get_traces()
    latents = {*model.latents.global_sites, *model.latents.local_sites}
    assert latents <= set(trace.nodes)
    assert {trace.nodes[name]["value"].dtype for name in latents} == {torch.float32}
    assert {p.dtype for p in [*model.parameters(), *guide.parameters()]} == {torch.float32}
    assert all(p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in svi.parameters)
    assert all(p.grad is None and not p.requires_grad for p in system.backbone.lm.parameters())
    after = weights(system.backbone.lm)
    assert after.keys() == frozen.keys()
    assert all(torch.equal(after[name], value) for name, value in frozen.items())


def plain_copy(lm: nn.Module, folder: Path) -> tuple[nn.Module, list[str]]:
    """The same model in bfloat16 with the weights that the quantised ones stand for, and which those are."""
    copy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval().requires_grad_(False)
    changed = []
    for name, layer in lm.named_modules():
        weight = getattr(layer, "weight", None)
        if hasattr(weight, "qdata"):
            values = weight.dequantize()
        elif hasattr(weight, "quant_state"):
            values = import_module("bitsandbytes").functional.dequantize_4bit(weight.data, weight.quant_state)
        else:
            continue
        copy.get_submodule(name).weight.copy_(values)
        changed.append(name)
    return copy, changed


def gradient(lm: nn.Module) -> Tensor:
    """Of the language model's loss in its own input."""
    x = lm.get_input_embeddings()(IDS).detach().requires_grad_(True)
    lm(inputs_embeds=x, labels=IDS, use_cache=False).loss.backward()
    return x.grad.float()


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_forward_and_gradient_are_those_of_the_weights_as_stored(dtype: str, folder: Path) -> None:
    """After an inference, too: `load_backbone` has made one. bfloat16 rounds by up to 0.4 %."""
    backbone = load_backbone(folder, dtype=dtype)
    copy, changed = plain_copy(backbone.lm, folder)
    linears = [name for name, layer in copy.named_modules() if isinstance(layer, nn.Linear)]
    assert sorted(changed) == sorted(set(linears) - {"lm_head"})
    with torch.no_grad():
        truth = copy(input_ids=IDS, use_cache=False).logits.float()
    assert distance(own_logits(backbone, IDS).float(), truth) < 0.02
    assert distance(gradient(backbone.lm), gradient(copy)) < 0.06
    given = load_backbone(folder, dtype="bfloat16")
    with torch.no_grad():
        assert distance(truth, own_logits(given, IDS).float()) > 0.003  # the copy's weights are other ones


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_bits_that_weights_take(dtype: str, folder: Path) -> None:
    """A weight's own, and its share of a scale of 32 bits: for each row of int8, each block of 64 of int4."""
    layer = load_backbone(folder, dtype=dtype).lm.get_submodule("model.layers.0.mlp.up_proj")
    stored = weights(nn.ModuleDict({"layer": layer}))
    stored = {name: value for name, value in stored.items() if "quant_map" not in name and "__" not in name}
    bits = 8 * sum(value.numel() * value.element_size() for value in stored.values()) / (128 * 64)
    assert bits == {"int8": 8 + 32 / 64, "int4": 4 + 32 / 64}[dtype]


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        pytest.param("GPT-2", "int8", marks=needs["int8"]),  # Conv1D
        pytest.param("Falcon", "int8", marks=needs["int8"]),  # a forward of its own
        pytest.param("Falcon", "int4", marks=needs["int4"]),
    ],
)
def test_a_family_that_cannot_be_held_so_is_refused(family: str, dtype: str, tmp_path: Path) -> None:
    make_lm(family).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(BackboneError, match=rf"The linear layers of \w+ cannot be quantised to {dtype}"):
        load_backbone(tmp_path, dtype=dtype)


def test_a_layout_without_gradients_is_refused() -> None:
    layer = nn.Linear(2, 2)
    layer.support_avx512bf16_for_cpu = True
    quantized.keep_gradients(layer)
    assert layer.support_avx512bf16_for_cpu is False
    layer.weight.quant_state = SimpleNamespace(packing_format_for_cpu=True)
    with pytest.raises(BackboneError, match="converted the 4-bit weights"):
        quantized.keep_gradients(layer)


@pytest.mark.parametrize("dtype", quantized.PACKAGES)
def test_a_package_that_is_absent_is_named(dtype: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(BackboneError, match=r"needs the package \w+: pip install 'bara-pyro\[quantized\]'\."):
        load_backbone(folder, dtype=dtype)
    with pytest.raises(BackboneError, match=f"Random weights cannot be {dtype}"):
        load_backbone(folder, dtype=dtype, random_seed=0)


def test_types_are_said_in_one_place() -> None:
    assert {*DTYPES, *quantized.PACKAGES} == set(get_args(WeightType))


@pytest.mark.parametrize("dtype", [pytest.param("int8", marks=needs["int8"])])
def test_a_gradient_through_int8_weights_keeps_no_larger_ones(dtype: str, folder: Path) -> None:
    """Those in bfloat16, two bytes a weight, are made again for it; values and gradient are torchao's own."""
    lm = load_backbone(folder, dtype=dtype).lm
    layer = lm.get_submodule("model.layers.0.mlp.up_proj")
    x = torch.randn(2, 3, 64, dtype=torch.bfloat16, requires_grad=True)
    found = []
    for forward in (layer.forward, lambda x: nn.functional.linear(x, layer.weight, layer.bias)):
        kept: list[int] = []

        def keep(value: Tensor, kept: list[int] = kept) -> Tensor:
            kept.append(value.numel() * value.element_size())
            return value

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            out = forward(x)
        found.append((out, *torch.autograd.grad(out.float().square().sum(), x), max(kept)))
    (ours, gradient, largest), (theirs, expected, larger) = found
    assert torch.equal(ours, theirs)
    assert torch.equal(gradient, expected)
    assert (largest, larger) == (128 * 64, 2 * 128 * 64)

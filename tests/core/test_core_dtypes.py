"""bfloat16 backbones and autocast: the latents stay float32."""

import math

import pyro
import pytest
import torch
from core_cases import CONFIGS, backbone, bara_pair, make_batch, make_lm, trainer
from pyro import poutine

from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.models.bara import BaRA


def latent_dtypes(guide: WeibullGuide, model: BaRA) -> set:
    trace, _ = guide.get_traces()
    names = {*model.latents.global_sites, *model.latents.local_sites}
    assert names <= set(trace.nodes)
    return {trace.nodes[name]["value"].dtype for name in names}


@pytest.mark.parametrize("arch", CONFIGS)
def test_bfloat16_backbone(arch: str) -> None:
    frozen = Backbone(make_lm(arch, torch.bfloat16))
    assert frozen.dtype == torch.bfloat16
    model = BaRA(frozen, 4, r=3, form="gate")
    guide = WeibullGuide(model)
    svi = trainer((model, guide))
    losses = [svi.step(make_batch()) for _ in range(3)]
    assert all(map(math.isfinite, losses))
    assert latent_dtypes(guide, model) == {torch.float32}
    assert {p.dtype for p in [*model.parameters(), *guide.parameters()]} == {torch.float32}
    assert all(p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in svi.parameters)
    with torch.no_grad():
        out = poutine.trace(model).get_trace(make_batch()).nodes["y"]["fn"].logits
    assert out.dtype == torch.float32


@pytest.mark.parametrize("arch", ["qwen2", "gpt2"])
def test_autocast_training(arch: str) -> None:
    model, guide = bara_pair(arch, form="gate")
    svi = trainer((model, guide), autocast=torch.bfloat16)
    seen = []
    layer = backbone(arch).lm.get_submodule(model.targets[0].path)
    handle = layer.register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    try:
        losses = [svi.step(make_batch()) for _ in range(3)]
    finally:
        handle.remove()
    assert all(map(math.isfinite, losses))
    assert seen == [torch.bfloat16] * 3  # the backbone really ran in bfloat16
    assert latent_dtypes(guide, model) == {torch.float32}
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in svi.parameters)


def test_autocast_reaches_neither_adapter_nor_posterior() -> None:
    # At a site that sees the same input, autocast must not change the posterior by a bit.
    model, guide = bara_pair(form="gate")
    x = torch.randn(2, 5, 16)
    adapter = next(iter(model.adapters.values()))
    torch.nn.init.normal_(adapter.lora_B)
    out = []
    for enabled in (False, True):
        pyro.set_rng_seed(0)
        with guide, torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out.append(adapter.change(x, model.global_latents(make_batch())[0]))
    assert torch.equal(*out)

"""Layers without an adapter are run once a row; nothing else changes."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from core_cases import CONFIGS, bara_pair, lora_pair, make_batch, make_lm, trainer
from peft import LoraConfig
from torch import Tensor, nn
from torch.testing import assert_close

from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.verifying import verify
from bara_pyro.models.bara import BaRA

# Only the upper of the two layers holds adapters, and the head.
UPPER = {arch: r".*\.1\..*(q_proj|v_proj|query_key_value|c_attn)|lm_head|embed_out" for arch in CONFIGS}


@contextmanager
def counted(layer: nn.Module) -> Iterator[list[int]]:
    """The rows of every forward of a part of a layer (a layer itself is called to be skipped)."""
    rows: list[int] = []
    handle = layer.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    try:
        yield rows
    finally:
        handle.remove()


def pair(arch: str = "qwen2", *, depth: int = 1) -> tuple[BaRA, WeibullGuide]:
    torch.manual_seed(2)
    model = BaRA(Backbone(make_lm(arch)), 4, r=3, form="gate", target_modules=UPPER[arch])
    guide = WeibullGuide(model)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("lora_B"):
                value.normal_(std=0.3)
    assert model.frozen_layers == 1
    model.frozen_layers = depth
    return model, guide


def parameters(model: AdaptedLM, guide: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in (*model.parameters(), *guide.parameters())])


@pytest.mark.parametrize(("arch", "samples"), [*((arch, 5) for arch in CONFIGS), ("qwen2", 0)])
def test_predictions_are_those_of_the_whole_model(arch: str, samples: int) -> None:
    fast, slow = pair(arch), pair(arch, depth=0)
    for batch in (make_batch(), make_batch(pad=3), make_batch(choose=[2, 0])):
        assert_close(
            predict(*fast, batch, samples=samples), predict(*slow, batch, samples=samples), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("arch", CONFIGS)
def test_training_is_that_of_the_whole_model(arch: str) -> None:
    ends = []
    for depth in (0, 1):
        fitted = pair(arch, depth=depth)
        svi = trainer(fitted)
        torch.manual_seed(0)
        for _ in range(5):
            svi.step(make_batch())
        ends.append(parameters(*fitted))
    assert_close(ends[0], ends[1], rtol=0, atol=1e-5)
    assert (ends[0] - parameters(*pair(arch))).abs().max() > 1e-2


def test_a_row_is_run_once() -> None:
    """In training and prediction, whatever the draws, the company and the padding."""
    model, guide = pair()
    lower, upper = model.backbone.states.layers
    with counted(lower.mlp) as low, counted(upper.mlp) as high:
        svi = trainer((model, guide))
        for _ in range(3):
            svi.step(make_batch())
        predict(model, guide, make_batch(pad=2), samples=5)
        predict(model, guide, make_batch(choose=[1, 0]), samples=5)
    assert sum(low) == 4
    assert sum(high) == 3 * 4 + 5 * 4 + 5 * 2


def test_without_room_a_row_is_run_once_a_forward() -> None:
    model, guide = pair()
    model.backbone.states.budget = 0
    before = predict(model, guide, make_batch(), samples=5)
    with counted(model.backbone.states.layers[0].mlp) as low:
        after = predict(model, guide, make_batch(), samples=5)
    assert sum(low) == 4
    assert torch.equal(before, after)


def test_states_are_kept_by_tokens_and_type() -> None:
    """Other tokens under the same identifier, and other products of the same tokens, are other states."""
    model, guide = pair()
    other = make_batch(((5, 7, 10), *[(3, 4)] * 3))
    predict(model, guide, make_batch(), samples=0)
    assert_close(
        predict(model, guide, other, samples=0), predict(*pair(depth=0), other, samples=0), rtol=0, atol=1e-5
    )
    kept = len(model.backbone.states._kept)
    with torch.autocast("cpu", torch.bfloat16):
        predict(model, guide, make_batch(), samples=0)
    assert len(model.backbone.states._kept) == kept + 4


@pytest.mark.parametrize(
    ("targets", "depth"),
    [(None, 0), ("all-linear", 0), (["lm_head"], 2), (r".*layers\.1\.mlp\..*", 1), (r".*\.0\..*q_proj", 0)],
)
def test_the_lowest_adapter_decides(targets: str | list[str] | None, depth: int) -> None:
    model, guide = lora_pair(target_modules=targets)
    assert model.frozen_layers == depth
    found = predict(model, guide, make_batch(), samples=0)
    model.frozen_layers = 0
    assert_close(found, predict(model, guide, make_batch(), samples=0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_do_not_depend_on_company(dtype: torch.dtype) -> None:
    """To the last bit: else a run that is resumed, or made after another, would not be the same run."""
    kept = []
    for batches in ([make_batch()], [make_batch(choose=[row], pad=row) for row in (2, 0, 3, 1)]):
        backbone = Backbone(make_lm("qwen2", dtype))
        for batch in batches:
            backbone.hidden(batch.input_ids, batch.attention_mask, below=1)
        kept.append(backbone.states._kept)
    assert kept[0].keys() == kept[1].keys()
    assert all(torch.equal(kept[0][key], kept[1][key]) for key in kept[0])


def test_an_exception_leaves_the_language_model_as_it_was() -> None:
    model, guide = bara_pair(target_modules=["lm_head"])
    layers = model.backbone.states.layers
    layers_before = [vars(layer).copy() for layer in layers]
    with pytest.raises(IndexError):
        predict(model, guide, make_batch(((5, 999),), choose=[0]), samples=0)
    assert [vars(layer) for layer in layers] == layers_before
    assert not any(layer._forward_hooks for layer in layers)


def test_layers_that_hand_on_more_than_states_are_run_whole() -> None:
    """What `verify` finds at loading: here an upper layer that looks at what the lowest one saw."""
    lm = make_lm("qwen2")
    lower, upper = lm.model.layers
    plain, side = type(lower).forward, []

    def leaking(hidden: Tensor, *args: object, **kwargs: object) -> Tensor:
        side.append(hidden * 3)
        return plain(lower, hidden, *args, **kwargs)

    lower.forward = leaking
    lm.model.register_forward_pre_hook(lambda module, args: side.clear())
    upper.register_forward_hook(lambda module, args, output: output + sum(side))
    backbone = Backbone(lm)
    verify(backbone)
    assert backbone.states.layers == ()


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`")
@pytest.mark.parametrize("switch", ["off", "to another"])
def test_other_adapters_below_are_seen(switch: str) -> None:
    """PEFT's, of a layer below ours: no weight changes where they are switched."""
    lm = make_lm("qwen2")
    torch.manual_seed(1)
    other = LoraConfig(r=4, lora_alpha=32, target_modules=["layers.0.mlp.down_proj"], init_lora_weights=False)
    lm.add_adapter(other, "another")
    lm.add_adapter(other, "one")
    model = BaRA(Backbone(lm), 4, r=3, form="gate", target_modules=UPPER["qwen2"])
    guide, batch = WeibullGuide(model), make_batch()
    assert model.frozen_layers == 1
    before = predict(model, guide, batch, samples=0)
    if switch == "off":
        lm.disable_adapters()
    else:
        lm.set_adapter("another")
    found = predict(model, guide, batch, samples=0)
    model.frozen_layers = 0
    assert_close(found, predict(model, guide, batch, samples=0), rtol=0, atol=1e-5)
    assert (found - before).abs().max() > 0.01

"""Language models whose layers are not all attention: right, or refused with a sentence."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close
from transformers import (
    AutoModelForCausalLM,
    BertGenerationConfig,
    BertGenerationDecoder,
    FalconH1Config,
    JambaConfig,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    PretrainedConfig,
    Qwen3NextConfig,
)

from bara_pyro.core.prediction import predict
from bara_pyro.data.split import collate_ids
from bara_pyro.errors import BackboneError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.verifying import verify
from bara_pyro.models.lora import LoRA

SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 4, "initializer_range": 0.3}
TOKENS = {"pad_token_id": 1, "bos_token_id": None, "eos_token_id": 1}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 2,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "Llama": lambda: LlamaConfig(**SIZES, **TOKENS, **HEADS),
    "LFM2": lambda: Lfm2Config(
        **SIZES, **TOKENS, **HEADS, conv_L_cache=3, layer_types=["conv", "full_attention", "conv", "conv"]
    ),
    "Qwen3-Next": lambda: Qwen3NextConfig(
        **SIZES, **TOKENS, **HEADS, **LINEAR, **EXPERTS, shared_expert_intermediate_size=16, head_dim=8
    ),
    "Jamba": lambda: JambaConfig(
        **SIZES, **TOKENS, **HEADS, num_experts=2, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=4
    ),
    "Falcon-H1": lambda: FalconH1Config(
        **SIZES,
        **TOKENS,
        **HEADS,
        mamba_d_ssm=32,
        mamba_n_heads=4,
        mamba_d_state=4,
        mamba_d_head=8,
        mamba_n_groups=1,
    ),
    "Mamba": lambda: MambaConfig(**SIZES, **TOKENS, state_size=4, expand=2, conv_kernel=3),
}
COMMON = [3 + (7 * i) % 50 for i in range(36)]  # more than `prefix.LEAST`
ROWS = [[*COMMON, *own] for own in ([5, 7, 9], [3, 4, 6], [11, 12, 2], [4, 8, 9])]


def loaded(name: str, spread: float = 0.3) -> Backbone:
    torch.manual_seed(3)
    config = CONFIGS[name]()
    config.initializer_range = spread
    backbone = Backbone(AutoModelForCausalLM.from_config(config).eval())
    verify(backbone)
    return backbone


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_that_begin_alike_are_answered_as_each_alone(name: str) -> None:
    try:
        backbone = loaded(name)
    except BackboneError as error:
        assert name != "Llama"
        pytest.skip(f"refused: {error}")
    model = LoRA(backbone, 4, r=2, target_modules=["in_proj"] if name == "Mamba" else "all-linear")
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(std=0.05)
    guide = DeltaGuide(model)
    batch = collate_ids(ROWS, [0] * 4, list("abcd"), torch.tensor([3, 4, 5]), 1)
    batch = replace(batch, labels=None)
    alone = [predict(model, guide, batch.questions(slice(i, i + 1)), samples=0) for i in range(4)]
    assert_close(predict(model, guide, batch, samples=0), torch.cat(alone, 1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "Mamba"])
def test_texts_in_one_row_do_not_see_each_other_or_are_refused(name: str) -> None:
    """A recurrent layer or a convolution passes on what a mask of attention hides, however weakly."""
    backbone = loaded(name, 0.02)
    ids = torch.tensor([[5, 9, 11, 13, 17, 4, 8]])
    other = torch.tensor([[5, 9, 31, 33, 37, 4, 8]])  # another text before the last
    segments = torch.tensor([[0, 0, 1, 1, 1, 2, 2]])
    if not backbone.takes_segments:
        assert name != "Llama"
        with pytest.raises(BackboneError, match="cannot read several texts in one row"):
            backbone.hidden(ids, torch.ones_like(ids), segments)
        return
    found = [backbone.hidden(row, torch.ones_like(row), segments)[:, -2:] for row in (ids, other)]
    assert_close(*found, rtol=0, atol=1e-5 * float(found[0].detach().abs().max()))


def test_a_model_that_sees_what_comes_is_refused() -> None:
    config = BertGenerationConfig(
        **SIZES, **TOKENS, num_attention_heads=4, intermediate_size=48, is_decoder=False
    )
    torch.manual_seed(3)
    with pytest.raises(BackboneError, match="attend to later ones"):
        verify(Backbone(BertGenerationDecoder(config).eval()))

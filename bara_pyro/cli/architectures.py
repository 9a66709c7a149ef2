"""Build published architectures without weights, to count parameters and for benchmarks."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config

from bara_pyro.errors import ConfigError, unknown
from bara_pyro.lm.backbone import Backbone

SHAPE = (
    *("vocab_size", "hidden_size", "intermediate_size"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
)


def shaped(kind: type[PreTrainedConfig], *sizes: int, **more: Any) -> Any:
    """Return a configuration with the sizes of `SHAPE`; embeddings are untied unless `more` ties them."""
    return kind(**dict(zip(SHAPE, sizes, strict=True)), **{"tie_word_embeddings": False, **more})


# Sizes from the models' own configuration files.
ARCHITECTURES: dict[str, PreTrainedConfig] = {
    "qwen2.5-0.5b": shaped(Qwen2Config, 151936, 896, 4864, 24, 14, 2, tie_word_embeddings=True),
    "qwen2.5-7b": shaped(Qwen2Config, 152064, 3584, 18944, 28, 28, 4),
    "llama-2-7b": shaped(LlamaConfig, 32000, 4096, 11008, 32, 32, 32),
    "llama-3.1-8b": shaped(LlamaConfig, 128256, 4096, 14336, 32, 32, 8),
}


def architecture(name: str) -> PreTrainedConfig:
    """Return the configuration of a published architecture; a `ConfigError` if the name is unknown."""
    if name.lower() not in ARCHITECTURES:
        raise ConfigError(unknown("architecture", name, ARCHITECTURES))
    return ARCHITECTURES[name.lower()]


def empty_backbone(name: str) -> Backbone:
    """Return a published architecture on the meta device, which has shapes but no weights."""
    config = architecture(name)
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return Backbone(lm, name=name)

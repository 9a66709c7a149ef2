"""Published architectures without their weights, for counting parameters and for benchmarks."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config

from bara_pyro.core.backbone import Backbone
from bara_pyro.errors import ConfigError, unknown

# Sizes as printed in the models' own configuration files.
ARCHITECTURES: dict[str, PreTrainedConfig] = {
    "qwen2.5-0.5b": Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
    "qwen2.5-7b": Qwen2Config(
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    ),
    "llama-2-7b": LlamaConfig(
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        tie_word_embeddings=False,
    ),
    "llama-3.1-8b": LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=False,
    ),
}


def architecture(name: str) -> AutoConfig:
    """Return the configuration of a published architecture.

    Raises:
        ConfigError: the name is unknown.
    """
    if name.lower() not in ARCHITECTURES:
        raise ConfigError(unknown("architecture", name, ARCHITECTURES))
    return ARCHITECTURES[name.lower()]


def empty_backbone(name: str) -> Backbone:
    """Return a published architecture on the meta device: shapes, no memory, no weights."""
    config = architecture(name)
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config)
    return Backbone(lm, name=name)

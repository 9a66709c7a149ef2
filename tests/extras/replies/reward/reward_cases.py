"""A tiny random language model with a few words, and classifiers made from it."""

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
)

WORDS = (
    "<unk>",
    "<pad>",
    "<end>",
    "<user>",
    "<bot>",
    "the",
    "fox",
    "hen",
    "cat",
    "owl",
    "is",
    "red",
    "blue",
    "good",
)
PLAIN = WORDS[5:13]
TEMPLATE = (
    "{% for m in messages %}{{ '<user>' if m['role'] == 'user' else '<bot>' }} {{ m['content'] }} <end> "
    "{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)
_SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32, "initializer_range": 0.3}
_TOKENS = {"vocab_size": len(WORDS), "bos_token_id": None, "eos_token_id": 2}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(
        **_SIZES, **_TOKENS, intermediate_size=48, num_key_value_heads=1, max_position_embeddings=64
    ),
    "roberta": RobertaConfig(
        **_SIZES, vocab_size=len(WORDS), intermediate_size=48, max_position_embeddings=66, pad_token_id=1
    ),
    "gpt2": GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.3, **_TOKENS),
}


def tokenizer(*, template: bool = False, pad: str | None = "<pad>") -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<end>", pad_token=pad)
    made.chat_template = TEMPLATE if template else None
    return made


def save_lm(folder: Path, arch: str = "llama", *, template: bool = False, pad: str | None = "<pad>") -> Path:
    """Write a causal language model of random weights: no head."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIGS[arch]).save_pretrained(folder)
    tokenizer(template=template, pad=pad).save_pretrained(folder)
    return folder


def save_classifier(
    folder: Path, arch: str = "llama", *, outputs: int = 1, template: bool = False, pad: int | None = 1
) -> Path:
    """Write a classifier of random weights, head and all."""
    torch.manual_seed(0)
    config = type(CONFIGS[arch])(**{**CONFIGS[arch].to_dict(), "num_labels": outputs, "pad_token_id": pad})
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer(template=template, pad=None if pad is None else WORDS[pad]).save_pretrained(folder)
    return folder


def words(rng: random.Random, least: int = 2, most: int = 6) -> list[str]:
    return rng.choices(PLAIN, k=rng.randint(least, most))

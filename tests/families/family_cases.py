"""A tiny random language model of every family, and the table of docs/models.md that is made of them.

python tests/families/family_cases.py      writes the table anew
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from app_cases import word_tokenizer
from torch import nn

from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import find_targets

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- families -->", "<!-- /families -->"
SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,  # far from linear, so that a wrong input or position shows
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
GATED = {**SIZES, "intermediate_size": 24, "num_key_value_heads": 1}
GEMMA = {**GATED, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}
TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
TOWER |= {"image_size": 8, "patch_size": 4}


def llava(vocab_size: int) -> hf.PretrainedConfig:
    text = hf.LlamaConfig(**GATED, vocab_size=vocab_size)
    return hf.LlavaConfig(text_config=text, vision_config=hf.CLIPVisionConfig(**TOWER), image_token_index=2)


def gemma3_images(vocab_size: int) -> hf.PretrainedConfig:
    text = hf.Gemma3TextConfig(**GEMMA, vocab_size=vocab_size).to_dict()
    tower = hf.SiglipVisionConfig(**TOWER).to_dict()
    return hf.Gemma3Config(text_config=text, vision_config=tower, mm_tokens_per_image=4, image_token_index=2)


FAMILIES = {
    "Llama, SmolLM2": partial(hf.LlamaConfig, **GATED),
    "Mistral": partial(hf.MistralConfig, **GATED),
    "Qwen2, Qwen2.5": partial(hf.Qwen2Config, **GATED),
    "Qwen3": partial(hf.Qwen3Config, **GATED, head_dim=8),
    "Gemma 2": partial(hf.Gemma2Config, **GEMMA, final_logit_softcapping=3.0),
    "Gemma 3": partial(hf.Gemma3TextConfig, **GEMMA),
    "Phi-3": partial(hf.Phi3Config, **GATED),
    "OLMo 2": partial(hf.Olmo2Config, **GATED),
    "SmolLM3": partial(hf.SmolLM3Config, **GATED),
    "Granite": partial(hf.GraniteConfig, **GATED, logits_scaling=4.0, embedding_multiplier=2.0),
    "Cohere": partial(hf.CohereConfig, **GATED, logit_scale=0.25),
    "GPT-2": partial(
        hf.GPT2Config,
        **{"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.3},
        **{"bos_token_id": None, "eos_token_id": 1},
    ),
    "GPT-NeoX, Pythia": partial(hf.GPTNeoXConfig, **SIZES, intermediate_size=24),
    "Falcon": partial(hf.FalconConfig, **SIZES),
    "Mixtral": partial(hf.MixtralConfig, **GATED, num_local_experts=4, num_experts_per_tok=2),
    "Qwen3-MoE": partial(
        hf.Qwen3MoeConfig, **GATED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8
    ),
    "LLaVA (its text tower)": llava,
    "Gemma 3 with images (its text tower)": gemma3_images,
}


def make_lm(family: str) -> hf.PreTrainedModel:
    """A new language model, the same weights each time, whose words are those of the toy tokenizer."""
    torch.manual_seed(3)
    config = FAMILIES[family](vocab_size=len(word_tokenizer()))
    images = type(config) not in hf.MODEL_FOR_CAUSAL_LM_MAPPING
    kind = hf.AutoModelForImageTextToText if images else hf.AutoModelForCausalLM
    return kind.from_config(config).eval()


def last(path: str) -> str:
    return path.rsplit(".", 1)[-1]


def facts(family: str) -> str:
    """The cells of a family, read off its tiny model."""
    lm = make_lm(family)
    backbone = Backbone(lm)
    text = lm.config.get_text_config()
    targets = list(dict.fromkeys(last(target.path) for target in find_targets(lm)))
    rest = {last(t.path) for t in find_targets(lm, "all-linear")} - set(targets)
    tied = lm.get_input_embeddings().weight is lm.get_output_embeddings().weight
    logits = {
        "as they are": backbone.plain_head,
        "soft cap": bool(getattr(text, "final_logit_softcapping", None)),
        "scaled": not backbone.plain_head and not getattr(text, "final_logit_softcapping", None),
    }
    names = [", ".join(f"`{name}`" for name in part) for part in (targets, sorted(rest))]
    said = next(name for name, holds in logits.items() if holds)
    return f"{names[0]} | {names[1]} | {'tied' if tied else 'own'} | {said}"


def table() -> str:
    """A row for all families with the same cells."""
    alike: dict[str, list[str]] = {}
    for family in FAMILIES:
        alike.setdefault(facts(family), []).append(family)
    rows = [f"| {', '.join(families)} | {cells} |" for cells, families in alike.items()]
    head = [
        "| family | adapted by default | other linear layers | output embedding (as tested) | logits |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows])


def page_with(rows: str) -> str:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{rows}\n{END}{rest.partition(END)[2]}"


def modules_with_hooks(lm: nn.Module) -> list[str]:
    return [name for name, module in lm.named_modules() if module._forward_hooks or module._forward_pre_hooks]


if __name__ == "__main__":
    PAGE.write_text(page_with(table()))

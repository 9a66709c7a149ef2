"""Inputs of a language model's body: tokens, masks, positions, caches and the context length."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bara_pyro.data.types import TokenRows


def inputs_of(tokens: TokenRows, dtype: torch.dtype) -> dict[str, Any]:
    """Return the body's inputs for rows.

    Positions are counted from the first real token. If a row holds several texts, each gets the positions
    that it would have alone after the prefix. `dtype` is the language model's, for the attention mask.
    """
    input_ids, attention_mask, segments = tokens
    if segments is None:
        mask = attention_mask.to(torch.long)
        positions = mask.cumsum(-1) - mask  # 0 in the padding on the left
    else:
        visible = _seen(attention_mask.bool(), segments)
        # As if each continuation were the only one after the prefix.
        positions = (visible.sum(-1) - 1).clamp_min(0)
        mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        mask = mask.masked_fill_(~visible, torch.finfo(dtype).min).unsqueeze(1)
    return {
        "input_ids": input_ids,
        "attention_mask": mask,
        "position_ids": positions,
        "use_cache": False,
    }


def inputs_after(inputs: dict[str, Any], before: Tensor) -> dict[str, Any]:
    """Return the body's inputs for a continuation of tokens with the mask `before`."""
    return {
        **inputs,
        "attention_mask": torch.cat([before.to(torch.long), inputs["attention_mask"]], dim=-1),
        "position_ids": inputs["position_ids"] + before.sum(-1, keepdim=True),
        "use_cache": True,
    }


def _seen(real: Tensor, segments: Tensor) -> Tensor:
    """Return the tokens that each token sees, bool, `B x T x T`: earlier ones of prefix and own segment."""
    width = real.shape[-1]
    earlier = torch.ones(width, width, dtype=torch.bool, device=real.device).tril()
    there, here = segments.unsqueeze(-2), segments.unsqueeze(-1)
    return earlier & real.unsqueeze(-2) & ((there == 0) | (there == here))


CONTEXT_NAMES = ("max_position_embeddings", "max_seq_len")  # MPT has only the second


def positions(lm: PreTrainedModel) -> int | None:
    """Return the largest number of tokens that a model can read; None if its configuration sets no limit.

    Learned positions end there. Rotary positions continue beyond, but the model was not trained there.
    """
    text = lm.config.get_text_config()
    limits = (getattr(text, name, None) for name in CONTEXT_NAMES)
    most = next((value for value in limits if isinstance(value, int) and value > 0), None)
    embeddings = getattr(lm.base_model, "embeddings", None)
    # RoBERTa counts positions from the one after the padding token's.
    pad = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    return most if most is None or pad is None else most - int(pad) - 1


CACHE_NAMES = ("cache", "past_key_values")  # of keys and values: since transformers 5.24, and before it


def cache_argument(body: nn.Module) -> str:
    """Return the name under which a model's forward takes its keys and values."""
    return CACHE_NAMES[0] if CACHE_NAMES[0] in inspect.signature(body.forward).parameters else CACHE_NAMES[1]


def given_cache(arguments: Mapping[str, Any]) -> Any:
    """Return the cache of keys and values from the arguments of a forward pass, or None."""
    return next((arguments[name] for name in CACHE_NAMES if arguments.get(name) is not None), None)

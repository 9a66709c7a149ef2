"""What the body of a language model is given: tokens, what each sees, where they stand, how many fit."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bara_pyro.data.types import TokenRows


def inputs_of(tokens: TokenRows, dtype: torch.dtype) -> dict[str, Any]:
    """Return a body's inputs for rows.

    Positions are counted from the first real token. Of several texts in a row, each is where it would be
    behind the beginning by itself.

    Args:
        tokens: the rows.
        dtype: of the language model, for a mask of its own.
    """
    input_ids, attention_mask, segments = tokens
    if segments is None:
        mask = attention_mask.to(torch.long)
        positions = mask.cumsum(-1) - mask  # 0 in the padding on the left
    else:
        seen = _seen(attention_mask.bool(), segments)
        # As if each continuation stood behind the beginning by itself.
        positions = (seen.sum(-1) - 1).clamp_min(0)
        mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        mask = mask.masked_fill_(~seen, torch.finfo(dtype).min).unsqueeze(1)
    return {
        "input_ids": input_ids,
        "attention_mask": mask,
        "position_ids": positions,
        "use_cache": False,
    }


def inputs_after(inputs: dict[str, Any], before: Tensor) -> dict[str, Any]:
    """Return a body's inputs as they are after tokens whose mask is `before`."""
    return {
        **inputs,
        "attention_mask": torch.cat([before.to(torch.long), inputs["attention_mask"]], dim=-1),
        "position_ids": inputs["position_ids"] + before.sum(-1, keepdim=True),
        "use_cache": True,
    }


def _seen(real: Tensor, segments: Tensor) -> Tensor:
    """Return which tokens each one sees, bool, `B x T x T`: earlier ones of the beginning and its segment."""
    width = real.shape[-1]
    earlier = torch.ones(width, width, dtype=torch.bool, device=real.device).tril()
    there, here = segments.unsqueeze(-2), segments.unsqueeze(-1)
    return earlier & real.unsqueeze(-2) & ((there == 0) | (there == here))


CONTEXT_NAMES = ("max_position_embeddings", "max_seq_len")  # MPT has the second one alone


def positions(lm: PreTrainedModel) -> int | None:
    """Return the most tokens that a model can read; None where its configuration sets no bound.

    Learnt positions end there. Rotary ones can be computed beyond, where the model was not trained.
    """
    text = lm.config.get_text_config()
    found = (getattr(text, name, None) for name in CONTEXT_NAMES)
    most = next((value for value in found if isinstance(value, int) and value > 0), None)
    embeddings = getattr(lm.base_model, "embeddings", None)
    # RoBERTa's count begins behind the padding token's own place.
    pad = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    return most if most is None or pad is None else most - int(pad) - 1


CACHE_NAMES = ("cache", "past_key_values")  # of keys and values, since transformers 5.24 and before


def cache_argument(body: nn.Module) -> str:
    """Return the name under which a model's forward takes its keys and values."""
    return CACHE_NAMES[0] if CACHE_NAMES[0] in inspect.signature(body.forward).parameters else CACHE_NAMES[1]


def given_cache(arguments: Mapping[str, Any]) -> Any:
    """Return the keys and values among the arguments of a forward, under either name; None where none are."""
    return next((arguments[name] for name in CACHE_NAMES if arguments.get(name) is not None), None)

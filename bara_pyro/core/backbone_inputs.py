"""What the body of a language model is given: tokens, which of them each sees, and where they stand."""

from typing import Any

import torch
from torch import Tensor

from bara_pyro.core.frozen_states import Tokens


def inputs_of(tokens: Tokens, dtype: torch.dtype) -> dict[str, Any]:
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


def going_on(inputs: dict[str, Any], before: Tensor) -> dict[str, Any]:
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

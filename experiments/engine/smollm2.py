"""What studies of replies on SmolLM2 share: how it learns UltraFeedback's chosen replies."""

from collections.abc import Mapping
from typing import Any

TASK = "ultrafeedback"
STEPS = 60  # two epochs of the 118 replies of at most 256 tokens, prompt included
UPPER = r"model\.layers\.2[789]\..*_proj|lm_head"


def settings(method: str) -> Mapping[str, Any]:
    """Return a method's settings: its defaults, adapters in the upper three of 30 blocks and the head."""
    return {
        "backbone.dtype": "bfloat16",
        "adapter.target_modules": UPPER,
        "task.max_length": 256,
        "task.too_long": "drop",
    }

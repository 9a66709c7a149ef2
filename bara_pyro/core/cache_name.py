"""What a language model calls its keys and values: `cache`, or `past_key_values` before transformers 5.24."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

NAMES = ("cache", "past_key_values")


def cache_argument(body: nn.Module) -> str:
    """Return the name under which a model's forward takes its keys and values."""
    return NAMES[0] if NAMES[0] in inspect.signature(body.forward).parameters else NAMES[1]


def given_cache(arguments: Mapping[str, Any]) -> Any:
    """Return the keys and values among the arguments of a forward, under either name; None where none are."""
    return next((arguments[name] for name in NAMES if arguments.get(name) is not None), None)

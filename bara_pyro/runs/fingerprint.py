"""Fingerprints of a language model, so that a run is never continued with another one by mistake."""

import hashlib
import json
from collections.abc import Mapping

import torch
from torch import Tensor

from bara_pyro.lm.backbone import Backbone
from bara_pyro.types import Json

# Values hashed per tensor, spread over it: enough to distinguish two trainings, cheap for large models.
SAMPLE = 16
# Prefixes of settings of a configuration that change no hidden state.
NO_COMPUTATION = (
    "_", "attn_implementation", "bos_", "chunk_size_feed_forward", "dtype", "eos_", "id2label", "initializer",
    "is_", "model_type", "name_or_path", "output_", "pad_", "problem_type", "return_dict", "sep_", "torch_",
    "transformers_version", "use_cache",
)  # fmt: skip


def fingerprint(backbone: Backbone) -> str:
    """Return 16 hexadecimal digits over the names, shapes and some values of all frozen tensors."""
    return fingerprint_of(backbone.lm.state_dict())


def fingerprint_of(weights: Mapping[str, Tensor]) -> str:
    """Return the `fingerprint` of a language model with these weights, by their names in it.

    Values are rounded to bfloat16 first, so that the same weights in another floating-point type have the
    same fingerprint; quantised weights have another.
    """
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(f"{name}{tuple(value.shape)}".encode())
        numbers = getattr(value, "qdata", value)  # the integers of torchao's int8 weights
        if numbers.device.type != "meta":
            spread = numbers.flatten()[:: max(1, numbers.numel() // SAMPLE)][:SAMPLE]
            digest.update(spread.to(torch.bfloat16).view(torch.int16).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def computation(backbone: Backbone) -> Json:
    """Return the settings of a language model that its weights do not show, such as the rotary base.

    Another version of transformers may add settings: compare with `differing`, which ignores them.
    """
    text = json.loads(backbone.lm.config.get_text_config().to_json_string(use_diff=False))
    plain = {key: value for key, value in text.items() if isinstance(value, int | float | str)}
    nested = text.get("rope_parameters") or text.get("rope_scaling") or {}
    plain |= {f"rope.{key}": value for key, value in nested.items() if isinstance(value, int | float | str)}
    return {key: value for key, value in sorted(plain.items()) if not key.startswith(NO_COMPUTATION)}


def states_name(backbone: Backbone, dtype: str) -> str:
    """Return the name of the folder of a language model's hidden states: a hash of weights and settings."""
    does = hashlib.sha256(json.dumps(computation(backbone)).encode()).hexdigest()[:8]
    return f"{fingerprint(backbone)}-{does}-{dtype}"


def differing(stored: Json, found: Json) -> list[str]:
    """Return the settings in both that differ, as texts like `rms_norm_eps is 1e-06, was 1e-05`."""
    both = stored.keys() & found.keys()
    return [f"{key} is {found[key]}, was {stored[key]}" for key in sorted(both) if found[key] != stored[key]]

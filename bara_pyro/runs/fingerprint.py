"""Short identities of a backbone and of training rows, so that nothing goes on with others by mistake."""

import hashlib
import json

import torch

from bara_pyro.core.backbone import Backbone
from bara_pyro.data import EncodedSplit

# Values looked at per tensor, spread over it: enough to tell two trainings apart, cheap for large models.
SAMPLE = 16


def fingerprint(backbone: Backbone) -> str:
    """Return 16 hexadecimal digits over the names, shapes and some values of all frozen tensors.

    Values are rounded to bfloat16 first, so that the same weights loaded in another floating-point type
    agree; quantised ones are others.
    """
    digest = hashlib.sha256()
    for name, value in sorted(backbone.lm.state_dict().items()):
        digest.update(f"{name}{tuple(value.shape)}".encode())
        value = getattr(value, "qdata", value)  # of torchao's int8 weights the integers
        if value.device.type != "meta":
            spread = value.flatten()[:: max(1, value.numel() // SAMPLE)][:SAMPLE]
            digest.update(spread.to(torch.bfloat16).view(torch.int16).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def split_fingerprint(split: EncodedSplit) -> str:
    """Return 16 hexadecimal digits over the tokens, labels and identifiers of the rows of a split."""
    text = json.dumps([split.token_ids, split.labels, split.ids, *([split.texts] if split.texts else [])])
    return hashlib.sha256(text.encode()).hexdigest()[:16]

"""A short identity of a backbone, so that an adapter is never put on another one by mistake."""

import hashlib

import torch

from bara_pyro.backbone import Backbone

# Values looked at per tensor: enough to tell two trainings apart, cheap for billions of weights.
SAMPLE = 16


def fingerprint(backbone: Backbone) -> str:
    """Return 16 hexadecimal digits over the names, shapes and first values of all frozen tensors.

    Values are rounded to bfloat16 first, so that the same weights loaded in another type agree.
    """
    digest = hashlib.sha256()
    for name, value in sorted(backbone.lm.state_dict().items()):
        digest.update(f"{name}{tuple(value.shape)}".encode())
        if value.device.type != "meta":
            head = value.flatten()[:SAMPLE].to(torch.bfloat16).view(torch.int16)
            digest.update(head.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]

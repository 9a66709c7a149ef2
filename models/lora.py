"""LoRA (Hu et al., ICLR 2022): y = W0 x + s B A x, without latent variables. The baseline."""

import math
from collections.abc import Mapping
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.core.adapter import Adapter
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import Target


def down_projection(r: int, in_features: int) -> nn.Parameter:
    """Return LoRA's initial A, `r x in_features`: uniform on +-1/sqrt(in_features), as PEFT draws it."""
    return nn.Parameter(
        nn.init.kaiming_uniform_(torch.empty(r, in_features, dtype=torch.float32), a=math.sqrt(5))
    )


class LowRankAdapter(Adapter):
    """Adapter with LoRA's two factors, `lora_A` (`r x in`) and `lora_B` (`out x r`)."""

    def __init__(self, target: Target, r: int, scaling: float) -> None:
        super().__init__(target, r, scaling)
        self.lora_A = down_projection(r, target.in_features)
        # Zeros, so that training starts at the frozen model.
        self.lora_B = nn.Parameter(torch.zeros(target.out_features, r, dtype=torch.float32))


class LoRAAdapter(LowRankAdapter):
    """Update of one layer, `s B A x`."""

    def shrink(self, x: Tensor, latents: None) -> Tensor:
        """Return `A x`."""
        return F.linear(x, self.lora_A)


class LoRA(AdaptedLM):
    """Maximum-likelihood LoRA as a Pyro model: without latent sites the negative ELBO is the cross-entropy.

    Args:
        backbone: the frozen language model.
        num_data: number of training rows.
        **adapter: rank, target modules and other options; see `bara_pyro.core.program.AdaptedLM`.

    Raises:
        ConfigError: a number is out of range, or an option does not fit the likelihood.
    """

    adapters: Mapping[str, LoRAAdapter]
    has_activations = True

    def __init__(self, backbone: Backbone, num_data: int, **adapter: Unpack[AdapterOptions]) -> None:
        super().__init__(backbone, num_data, LoRAAdapter, **adapter)

r"""ScalaBL (Samplawski et al., UAI 2025): the singular values of LoRA's down-projection are random.

s  ~ Normal(0, 1)                  one r-vector per module, one draw per forward pass
y = W0 x + s_lora B diag(s) V x

V, `r x in`, starts as the right singular vectors of LoRA's initial A and is then trained freely, without an
orthogonality constraint. It is called `lora_A`, so that saved runs use PEFT's names.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Unpack

import torch
from pyro.distributions import Normal
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.core.latents import Latents, Site, by_module, sample_per_module
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import Target
from bara_pyro.models.lora import LowRankAdapter

S = "s"
SHIFT = 0.05  # largest initial scale in the public code, by which its prior is shifted


class ScalaBLAdapter(LowRankAdapter):
    """Update of one layer.

    Attributes:
        singular_values: `r`, the singular values of LoRA's initial A, largest first: initial posterior means.

    Raises:
        ConfigError: the rank exceeds the layer's input width, so A has fewer than r singular values.
    """

    def __init__(self, target: Target, r: int, scaling: float) -> None:
        super().__init__(target, r, scaling)
        if r > target.in_features:
            raise ConfigError(f"r={r} must not exceed the width {target.in_features} of {target.path}.")
        _, self.singular_values, right = torch.linalg.svd(self.lora_A.detach(), full_matrices=False)
        with torch.no_grad():
            self.lora_A.copy_(right)

    def shrink(self, x: Tensor, latents: Tensor) -> Tensor:
        """Return `diag(s) V x`; `latents` is this layer's s, `[draws x 1 x] 1 x r`."""
        return F.linear(x, self.lora_A) * latents


class ScalaBL(AdaptedLM):
    """ScalaBL as a Pyro model.

    Args:
        backbone, num_data, **adapter: see `bara_pyro.core.program.AdaptedLM`.
        beta: weight of the KL of `s`; 1 is the exact ELBO.
        shifted_prior: use the prior of the public code, Normal(u, (1 + u)^2) with u uniform on
            `[0.05 / sqrt(2), 0.05]`, one u per entry, instead of Normal(0, 1). In the public code this is an
            accident: the zeros of the prior share memory with the posterior's scales, which are overwritten
            with their initial values before the prior is built.

    Raises:
        ConfigError: `beta` is negative, or the rank exceeds the input width of a layer.
    """

    adapters: Mapping[str, ScalaBLAdapter]
    has_activations = True

    def __init__(
        self,
        backbone: Backbone,
        num_data: int,
        *,
        beta: float = 1.0,
        shifted_prior: bool = False,
        **adapter: Unpack[AdapterOptions],
    ) -> None:
        if beta < 0:
            raise ConfigError(f"beta={beta} must not be negative.")
        super().__init__(backbone, num_data, ScalaBLAdapter, **adapter)
        self.beta = beta
        shift = torch.zeros(())
        if shifted_prior:
            shift = torch.empty(len(self.targets), self.r).uniform_(SHIFT / 2**0.5, SHIFT)
        # Not saved: only training needs it, and the seed determines it.
        self.register_buffer("shift", shift.to(backbone.device), persistent=False)

    @cached_property
    def latents(self) -> Latents:
        """The site `s`, `modules x r`."""
        return Latents(self.r, {S: Site(S, (len(self.targets), self.r))})

    def global_latents(self, batch: Batch) -> Sequence[Tensor]:
        """Sample the singular values of all modules."""
        prior = Normal(self.shift, self.shift + 1, validate_args=False)
        return by_module(sample_per_module(S, prior, len(self.targets), self.r, self.beta))

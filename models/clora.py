r"""C-LoRA (Rahmati et al., NeurIPS 2025): a random `r x r` matrix per token between LoRA's factors.

E  ~ Normal(0, prior_scale)        r x r, one per module, row and token, independent entries
y = W0 x + s B E A x

The public code also multiplies E's noise by random signs per token, as flipout does. This program leaves the
signs out: E is drawn per token and its Gaussian is symmetric, so they do not change its distribution.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Unpack

import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.core.latents import Latents, Site, sample_per_token
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.models.lora import LowRankAdapter

E = "E"


class Prior(NamedTuple):
    """Prior of one entry of E, and the weight `beta` of its KL."""

    distribution: TorchDistribution
    beta: float


class CLoRAAdapter(LowRankAdapter):
    """Update of one layer; samples E, flattened row by row to `r * r`. The guide of E sees `A x`."""

    def shrink(self, x: Tensor, latents: Prior) -> Tensor:
        """Return `E A x`."""
        h = F.linear(x, self.lora_A)
        e = sample_per_token(self.target.site(E), latents.distribution, h, self.r**2, latents.beta)
        return (e.unflatten(-1, (self.r, self.r)) @ h.unsqueeze(-1)).squeeze(-1)


class CLoRA(AdaptedLM):
    """C-LoRA as a Pyro model.

    Args:
        backbone, num_data, **adapter: see `bara_pyro.core.program.AdaptedLM`.
        prior_scale: standard deviation of the entries of E.
        beta: weight of the KL of E; 1 is the exact ELBO. The KL is a sum over modules, rows and real tokens,
            which at weight 1 far outweighs the answers.

    Raises:
        ConfigError: `prior_scale` is not positive, or `beta` is negative.
    """

    adapters: Mapping[str, CLoRAAdapter]
    has_activations = True

    def __init__(
        self,
        backbone: Backbone,
        num_data: int,
        *,
        prior_scale: float = 0.2,
        beta: float = 1e-5,
        **adapter: Unpack[AdapterOptions],
    ) -> None:
        if prior_scale <= 0 or beta < 0:
            raise ConfigError(
                f"prior_scale={prior_scale} must be positive and beta={beta} must not be negative."
            )
        super().__init__(backbone, num_data, CLoRAAdapter, **adapter)
        self.prior_scale = prior_scale
        self.beta = beta

    @cached_property
    def latents(self) -> Latents:
        """One site `E/<path>` per module; its guide sees `A x`, of width r."""
        sites = {
            a.target.site(E): Site(E, (a.r**2,), a.target.path, local=True, width=a.r)
            for a in self.adapters.values()
        }
        return Latents(self.r, sites, modulating=True)

    def global_latents(self, batch: Batch) -> Sequence[Prior]:
        """Return the prior that all layers share; nothing is sampled here."""
        scale = torch.full((), self.prior_scale, device=self.backbone.device)
        prior = Prior(Normal(torch.zeros_like(scale), scale, validate_args=False), self.beta)
        return [prior] * len(self.targets)

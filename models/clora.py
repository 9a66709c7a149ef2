r"""C-LoRA (Rahmati et al., NeurIPS 2025): a random `r x r` matrix a token between LoRA's factors.

E  ~ Normal(0, prior_scale)        r x r, one a module, row and token, independent entries
y = W0 x + s B E A x

The public code multiplies E's noise by random signs a token, as flipout does. Its noise is drawn for each
token anyway and a Gaussian is symmetric, so that the signs leave its distribution
as it is: there are none here.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Unpack

import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.core.latents import Latents, Site
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.core.sampling import local_sample, tempered
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.models.lora import LowRankAdapter

E = "E"


class Prior(NamedTuple):
    """What a layer's E comes from: the distribution of one entry, and the weight of its KL."""

    distribution: TorchDistribution
    beta: float


class CLoRAAdapter(LowRankAdapter):
    """The change of one layer; samples its E, flattened row by row to `r * r`, whose guide sees `A x`."""

    def shrink(self, x: Tensor, latents: Prior) -> Tensor:
        """Return `E A x`."""
        h = F.linear(x, self.lora_A)
        prior = latents.distribution.expand([*h.shape[:-1], self.r**2]).to_event(1)
        with tempered(latents.beta):
            e = local_sample(self.target.site(E), prior, h)
        return (e.unflatten(-1, (self.r, self.r)) @ h.unsqueeze(-1)).squeeze(-1)


class CLoRA(AdaptedLM):
    """The C-LoRA program.

    Args:
        backbone, num_data, **adapter: see `bara_pyro.core.program.AdaptedLM`.
        prior_scale: standard deviation of E's entries.
        beta: weight of the KL of E, which is a sum over modules, rows and real tokens: far more than the
            answers; 1 is the exact ELBO.

    Raises:
        ConfigError: a number out of range.
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
            raise ConfigError(f"prior_scale={prior_scale} must be positive and beta={beta} not negative.")
        super().__init__(backbone, num_data, CLoRAAdapter, **adapter)
        self.prior_scale = prior_scale
        self.beta = beta

    @cached_property
    def latents(self) -> Latents:
        """One `E/<path>` a module; its guide sees `A x`, of width r."""
        sites = {
            a.target.site(E): Site(E, (a.r**2,), a.target.path, local=True, width=a.r)
            for a in self.adapters.values()
        }
        return Latents(self.r, sites, modulating=True)

    def global_latents(self, batch: Batch) -> Sequence[Prior]:
        """Make the prior once for all layers; there is nothing to sample."""
        scale = torch.tensor(self.prior_scale, device=self.backbone.device)
        prior = Prior(Normal(torch.zeros_like(scale), scale, validate_args=False), self.beta)
        return [prior] * len(self.targets)

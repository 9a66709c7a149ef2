r"""A program: VeRA (Kopiczko et al., ICLR 2024, arXiv 2310.11454) with a random gate.

Phi  ~ prior                         one r-vector for each module
y    = W0 x + s b * (B (Phi * A x))  A and B random and frozen, b trained

VeRA trains the vector between A and B; here it is the latent variable Phi.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.core.adapter import Adapter, chosen_rows
from bara_pyro.core.latents import Gates, Latents, Site, by_module, sample_per_module
from bara_pyro.core.modules import frozen, read
from bara_pyro.core.priors import make_prior
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import Target

PHI = "phi"


class VeRAAdapter(Adapter):
    """The adapter of one layer: `down` (`r x in`) and `up` (`out x r`) are frozen, `out_scale` is trained."""

    def __init__(self, target: Target, r: int, scaling: float) -> None:
        super().__init__(target, r, scaling)
        self.down = frozen(torch.randn(r, target.in_features) / target.in_features**0.5)
        self.up = frozen(torch.randn(target.out_features, r) / r**0.5)
        self.out_scale = nn.Parameter(torch.zeros(target.out_features))

    def shrink(self, x: Tensor, latents: Tensor) -> Tensor:
        """Return `Phi * A x`; `latents` is Phi of this module, `[draws x 1 x] 1 x r`."""
        return F.linear(x, read(self, "down")) * latents

    def expand(self, units: Tensor, latents: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return `s b * (B units)`."""
        scale = self.out_scale if rows is None else self.out_scale[rows]
        return F.linear(units, chosen_rows(read(self, "up"), rows)) * (scale * self.scaling)


class VeRA(AdaptedLM):
    """The program of Bayesian VeRA.

    Args:
        backbone, num_data, **adapter: see `bara_pyro.core.program.AdaptedLM`.
        prior: name of Phi's prior.
        beta: weight of the KL of Phi; 1 gives the exact ELBO.
    """

    adapters: Mapping[str, VeRAAdapter]

    def __init__(
        self,
        backbone: Backbone,
        num_data: int,
        *,
        prior: str = "weibull",
        beta: float = 1.0,
        **adapter: Unpack[AdapterOptions],
    ) -> None:
        super().__init__(backbone, num_data, VeRAAdapter, **adapter)
        self.prior = make_prior(prior, device=backbone.device)
        self.beta = beta

    @cached_property
    def latents(self) -> Latents:
        """The latent variable `phi`, `modules x r`."""
        return Latents(self.r, {PHI: Site(PHI, (len(self.targets), self.r))})

    @cached_property
    def gates(self) -> Gates:
        """The gates (only Phi), which the diagnostics of gates use."""
        return Gates(tuple(t.path for t in self.targets), self.r, PHI, {}, modulating=True)

    def global_latents(self, batch: object) -> Sequence[Tensor]:
        """Sample Phi for all modules."""
        return by_module(sample_per_module(PHI, self.prior, len(self.targets), self.r, self.beta))

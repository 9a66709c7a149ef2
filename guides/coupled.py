"""Weibull posteriors in which theta depends on the draw of Phi: q(Phi) q(theta | Phi, x).

The answers depend only on the product of Phi and theta, so in the posterior theta is large where Phi is
small. A guide with independent factors cannot represent this and is too narrow where the bound is exact
(docs/results/reference_posterior.md). This guide adds one parameter per rank unit,

    mean(theta | Phi, x) = softplus(A_m z + c log Phi),

where the learned c starts at 0, the guide with independent factors. Given Phi, the KL stays analytic, because
theta's prior does not depend on Phi:

    KL(q || p) = KL(q(Phi) || p(Phi)) + E_q(Phi) KL(q(theta | Phi, x) || p(theta)).

SVI estimates the expectation from the draw of Phi that it makes anyway.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.core.program import AdaptedLM
from bara_pyro.guides.families import register_guide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import PHI


@register_guide("weibull-coupled")
class CoupledWeibullGuide(WeibullGuide):
    """`WeibullGuide` in which theta depends on the draw of Phi.

    Args:
        model: the program. If it has only Phi or only theta, this is a plain `WeibullGuide`.
        **options: options of `AmortizedGuide`.

    Attributes:
        coupling: c, `modules x r`; a module of smaller rank uses only its first entries.
    """

    def __init__(self, model: AdaptedLM, **options: Any) -> None:
        super().__init__(model, **options)
        local = model.latents.local_sites
        self._places = {name: place for place, name in enumerate(local)} if PHI in model.latents.sites else {}
        self.coupling = nn.Parameter(torch.zeros(len(self._places), self.r, device=self.start.device))

    def shifted(self, raw: Tensor, name: str) -> Tensor:
        """Return the raw parameters, with `c log Phi` added to those of the means."""
        if not self._places:
            return raw
        phi = self.shared
        if phi is None:
            raise LookupError(f"{name} was sampled without Phi: pass it as `shared` to local_sample.")
        rank, levels = self.sizes[name]
        place = self._places[name]
        shift = (self.coupling[place] * phi[..., place, :].log())[..., :rank]  # [draws x 1 x] rank
        return raw + F.pad(shift, (0, levels)).unsqueeze(-2)

"""Weibull posteriors in which theta sees the draw of Phi: q(Phi) q(theta | Phi, x).

The answers see the product of both, so that in the posterior a theta is the larger the smaller its Phi is. A
guide of independent factors cannot say so and is too narrow where the bound is exact
(docs/results/reference_posterior.md). Here the amortiser is given one number more a rank unit,

    mean(theta | Phi, x) = softplus(A_m z + c log Phi),

with learnt c that starts at 0, the guide of independent factors. Its KL stays analytic, given Phi, because
theta's prior does not know Phi:

    KL(q || p) = KL(q(Phi) || p(Phi)) + E_q(Phi) KL(q(theta | Phi, x) || p(theta)),

and of the expectation SVI has the draw of Phi that it makes anyway.
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
    """`WeibullGuide` whose theta sees the draw of Phi.

    Args:
        model: the program. Where it has Phi or theta alone there is nothing to couple.
        **options: of `AmortizedGuide`.

    Attributes:
        coupling: c, `modules x r`; of fewer units for a module of a smaller rank.
    """

    by_unit = ("coupling",)

    def __init__(self, model: AdaptedLM, **options: Any) -> None:
        super().__init__(model, **options)
        local = model.latents.local_sites
        self._places = {name: place for place, name in enumerate(local)} if PHI in model.latents.sites else {}
        self.coupling = nn.Parameter(torch.zeros(len(self._places), self.r, device=self.start.device))

    def shifted(self, raw: Tensor, name: str) -> Tensor:
        """Return the raw parameters, those of the means moved by `c log Phi`."""
        if not self._places:
            return raw
        phi = self.shared
        if phi is None:
            raise LookupError(f"Phi was not given to {name}: see bara_pyro.core.sampling.local_sample.")
        rank, levels = self.sizes[name]
        place = self._places[name]
        shift = (self.coupling[place] * phi[..., place, :].log())[..., :rank]  # [draws x 1 x] rank
        return raw + F.pad(shift, (0, levels)).unsqueeze(-2)

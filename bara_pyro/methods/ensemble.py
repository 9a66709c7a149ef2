"""Deep ensemble of LoRAs, all members trained in one run."""

from functools import partial
from typing import Unpack

import torch
from pydantic import PositiveInt
from torch.optim import Optimizer

from bara_pyro.core.svi import SVI, SVIOptions
from bara_pyro.core.terms import ElboTerms
from bara_pyro.guides.ensemble import Average, EnsembleGuide
from bara_pyro.methods.base import Method, MethodConfig, pair, register_method, setting
from bara_pyro.methods.recipes import default_svi
from bara_pyro.models.ensemble import Ensemble


class EnsembleConfig(MethodConfig):
    """Settings of the deep ensemble."""

    members: PositiveInt = setting(
        Ensemble, "members", "number of LoRAs; parameter counts in the compared papers are those of 3"
    )
    average: Average = setting(
        EnsembleGuide,
        "average",
        "what to average over members for S >= 1: 'probabilities', or 'logits' as in published code",
    )


class EnsembleSVI(SVI[Ensemble, EnsembleGuide]):
    """One optimiser over all members that trains each as if it were alone on the same batches.

    AdamW works entry by entry, so members could interact only through the size of their gradients (Adam's
    epsilon) and through clipping. To avoid both, the gradient is that of the sum of the members' losses, not
    of the reported mean, and `clip_norm` applies to each member's gradient. `grad_norm` in the log is the
    norm over all members before clipping. The arguments are those of `SVI`.
    """

    def __init__(
        self,
        model: Ensemble,
        guide: EnsembleGuide,
        optim: Optimizer,
        **options: Unpack[SVIOptions],
    ) -> None:
        self.member_norm = options.pop("clip_norm", None)
        super().__init__(model, guide, optim, **options)

    def backward(self, terms: ElboTerms, share: float) -> None:
        """Add the gradients of the sum of the members' losses."""
        super().backward(terms, share * self.model.members)

    def update(self) -> None:
        """Clip each member's gradient and take the optimiser step."""
        if self.member_norm is not None:
            grads = [p.grad for p in self.parameters if p.grad is not None]
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
            factors = (self.member_norm / (norms + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(grads, [factors.view(-1, 1, 1)] * len(grads))
        self.optim.step()


ensemble_svi = partial(default_svi, kind=EnsembleSVI)
"""Returns the SVI that trains all members at once."""

register_method(
    Method(
        "ensemble",
        "Deep ensemble of LoRAs",
        EnsembleConfig,
        pair(Ensemble, EnsembleGuide),
        svi=ensemble_svi,
    )
)

"""Weibull posteriors, the paper's family (Eq. 16 and 17): analytic KL to every Gamma prior."""

from torch import Tensor

from bara_pyro.core.distributions import MeanWeibull
from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.guides.families import register_guide


@register_guide("weibull")
class WeibullGuide(AmortizedGuide):
    """`Weibull(k = 1 / kappa)` of the given mean."""

    def family(self, mean: Tensor, kappa: Tensor) -> MeanWeibull:
        """Return `MeanWeibull(mean, kappa)`."""
        return MeanWeibull(mean, kappa, validate_args=False)

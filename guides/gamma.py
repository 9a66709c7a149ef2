"""Gamma posteriors: implicitly reparameterised, with an analytic KL to Gamma priors."""

from pyro.distributions import Gamma
from torch import Tensor

from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.guides.families import register_guide


@register_guide("gamma")
class GammaGuide(AmortizedGuide):
    """`Gamma(concentration = 1 / kappa^2)` with the given mean.

    The standard deviation is `kappa * mean`. The same holds to first order for the Weibull family, and
    exactly at kappa = 1, the exponential distribution, so `kappa` means about the same in every family.
    """

    def family(self, mean: Tensor, kappa: Tensor) -> Gamma:
        """Return the Gamma distribution with mean `mean` and coefficient of variation `kappa`."""
        concentration = kappa.reciprocal().square()
        return Gamma(concentration, concentration / mean, validate_args=False)

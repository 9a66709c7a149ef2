"""Log-normal posteriors: cheapest to sample, with a heavy right tail and an analytic KL to Gamma priors."""

from pyro.distributions import LogNormal
from torch import Tensor

from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.guides.families import register_guide


@register_guide("lognormal")
class LogNormalGuide(AmortizedGuide):
    """`LogNormal` with the given mean and coefficient of variation `kappa`."""

    def family(self, mean: Tensor, kappa: Tensor) -> LogNormal:
        """Return `LogNormal(log mean - s^2 / 2, s)` with `s^2 = log(1 + kappa^2)`."""
        variance = kappa.square().log1p()
        return LogNormal(mean.log() - variance / 2, variance.sqrt(), validate_args=False)

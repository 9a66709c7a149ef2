"""Log-normal posteriors: cheapest to sample, with a heavy right tail and an analytic KL to Gamma priors."""

from pyro.distributions import LogNormal, Normal, TransformedDistribution
from torch import Tensor
from torch.distributions.transforms import ExpTransform

from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.guides.families import register_guide


@register_guide("lognormal")
class LogNormalGuide(AmortizedGuide):
    """`LogNormal` with the given mean and coefficient of variation `kappa`."""

    def family(self, mean: Tensor, kappa: Tensor) -> LogNormal:
        """Return `LogNormal(log mean - s^2 / 2, s)` with `s^2 = log(1 + kappa^2)`."""
        variance = kappa.square().log1p()
        normal = Normal(mean.log() - variance / 2, variance.sqrt(), validate_args=False)
        # Pyro's constructor would validate the normal distribution whatever it is told.
        posterior = LogNormal.__new__(LogNormal)
        TransformedDistribution.__init__(posterior, normal, ExpTransform(), validate_args=False)
        return posterior

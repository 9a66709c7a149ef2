"""Log-normal posteriors: cheapest to sample, with a heavy right tail and an analytic KL to Gamma priors."""

from collections.abc import Sequence

import torch
from pyro import distributions as dist
from torch import Tensor
from torch.distributions.transforms import ExpTransform

from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.guides.families import register_guide


class LogNormal(dist.LogNormal):
    """Pyro's `LogNormal` without validation: Pyro itself always validates the normal distribution inside."""

    def __init__(self, loc: Tensor, scale: Tensor) -> None:
        normal = dist.Normal(loc, scale, validate_args=False)
        torch.distributions.TransformedDistribution.__init__(
            self, normal, ExpTransform(), validate_args=False
        )

    def expand(self, batch_shape: Sequence[int], _instance: "LogNormal | None" = None) -> "LogNormal":
        """Return a view of batch shape `batch_shape`."""
        new = self._get_checked_instance(LogNormal, _instance)
        return torch.distributions.TransformedDistribution.expand(self, batch_shape, new)


@register_guide("lognormal")
class LogNormalGuide(AmortizedGuide):
    """`LogNormal` with the given mean and coefficient of variation `kappa`."""

    def family(self, mean: Tensor, kappa: Tensor) -> LogNormal:
        """Return `LogNormal(log mean - s^2 / 2, s)` with `s^2 = log(1 + kappa^2)`."""
        variance = kappa.square().log1p()
        return LogNormal(mean.log() - variance / 2, variance.sqrt())

"""A guide: every gate's posterior is exponential, which has a mean and no noise level of its own."""

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from bara_pyro.core.distributions import MeanWeibull
from bara_pyro.guides.amortized import AmortizedGuide


class ExponentialGuide(AmortizedGuide):
    """`q(gate) = Exponential`, as the Weibull distribution of shape 1, whose KL terms are registered."""

    noisy = False

    def family(self, mean: Tensor, kappa: Tensor) -> TorchDistribution:
        """Return the exponential distribution of the given mean."""
        return MeanWeibull(mean, torch.ones_like(mean), validate_args=False)

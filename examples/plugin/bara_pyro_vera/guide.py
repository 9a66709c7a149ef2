"""A guide with exponential posteriors, which have a mean but no separate noise level."""

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from bara_pyro.core.distributions import MeanWeibull
from bara_pyro.guides.amortized import AmortizedGuide


class ExponentialGuide(AmortizedGuide):
    """`q(gate) = Exponential`, written as a Weibull of shape 1 because its KL terms are registered."""

    noisy = False

    def family(self, mean: Tensor, kappa: Tensor) -> TorchDistribution:
        """Return the exponential distribution of the given mean."""
        return MeanWeibull(mean, torch.ones_like(mean), validate_args=False)

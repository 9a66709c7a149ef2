r"""A Weibull prior, and the analytic KL that the exact ELBO needs.

For a MeanWeibull posterior of shape k and scale l, and a prior of shape K and scale L (g: Euler's constant)

    KL = log k - k log l - log K + K log L + (k - K)(log l - g / k) + (l / L)^K Gamma(K / k + 1) - 1
"""

import torch
from pyro.distributions import Weibull
from torch import Tensor
from torch.distributions import register_kl

from bara_pyro.core.distributions import MeanWeibull

EULER = 0.5772156649015329


def weibull(scale: float | Tensor = 1.0, concentration: float | Tensor = 1.0) -> Weibull:
    """Return a Weibull prior; a concentration of 1 gives the exponential prior."""
    return Weibull(scale, concentration)


@register_kl(MeanWeibull, Weibull)
def kl_weibull(q: MeanWeibull, p: Weibull) -> Tensor:
    """Return KL(q || p) in nats, with the batch shape of q and p."""
    k, prior_k = q.kappa.reciprocal(), p.concentration
    log_scale = q.mean.log() - torch.lgamma(1 + q.kappa)
    prior_log_scale = p.scale.log()
    power = torch.exp(prior_k * (log_scale - prior_log_scale) + torch.lgamma(prior_k * q.kappa + 1))
    return (
        k.log() - prior_k.log()
        - k * log_scale + prior_k * prior_log_scale
        + (k - prior_k) * (log_scale - EULER * q.kappa)
        + power - 1
    )  # fmt: skip

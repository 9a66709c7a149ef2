"""Analytic KL divergences from Weibull posteriors to Gamma priors, registered with torch on import."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Exponential, Gamma, Weibull, register_kl

from bara_pyro.core.distributions.weibull import EULER, MeanWeibull


@register_kl(MeanWeibull, Gamma)
@register_kl(MeanWeibull, Exponential)
def kl_mean_weibull(q: MeanWeibull, p: Gamma | Exponential) -> Tensor:
    r"""Return KL(MeanWeibull(m, kappa) || Gamma(a, b)) in nats, shape ``batch_shape``; Exponential: a = 1.

    .. math:: g (a \kappa - 1) - \log\kappa + b m - 1 - a (\log(b m) - \log\Gamma(1 + \kappa)) + \log\Gamma(a)

    with Euler's g: the divergence of WHAI (Zhang et al. 2018, arXiv 1803.01328) in the parameters of
    :class:`MeanWeibull`, which leave no Gamma function outside a logarithm. It is exactly 0 where the two
    laws are one: ``m = 1 / b``, ``kappa = a = 1``.
    """
    return _weibull_gamma(q.kappa, q.log_norm, q.mean, p)


@register_kl(Weibull, Gamma)
@register_kl(Weibull, Exponential)
def kl_weibull(q: Weibull, p: Gamma | Exponential) -> Tensor:
    """Return KL(Weibull(scale, concentration) || Gamma or Exponential) in nats, for torch's and Pyro's own.

    Its mean overflows float32 from ``concentration < 0.03`` at unit scale; then so does the divergence.
    """
    kappa = q.concentration_reciprocal
    log_norm = torch.lgamma(1 + kappa).neg()
    return _weibull_gamma(kappa, log_norm, q.scale * torch.exp(-log_norm), p)


def _weibull_gamma(kappa: Tensor, log_norm: Tensor, mean: Tensor, p: Gamma | Exponential) -> Tensor:
    b = unexpanded(p.rate)
    a = unexpanded(p.concentration) if isinstance(p, Gamma) else b.new_ones(())
    # Each group is 0 on its own at kappa = a = b * mean = 1. log(b * mean) stands next to b * mean because
    # b * (1 / b) may round to 1 - eps, and (1 - eps) - 1 - log(1 - eps) is still 0.
    scaled_mean = mean * b
    shape = torch.addcmul(torch.lgamma(a) - EULER, a * EULER, kappa) - kappa.log()
    return shape + torch.addcmul(scaled_mean - 1, a, scaled_mean.log() + log_norm, value=-1)


def unexpanded(value: Tensor) -> Tensor:
    """Return ``value`` with its expanded dimensions cut back to size 1.

    Plates expand a prior's two numbers to ``B x T x r``; their lgamma is needed once, not B T r times.
    """
    if 0 not in value.stride():
        return value
    return value[tuple(slice(1) if stride == 0 else slice(None) for stride in value.stride())]

"""Analytic KL divergences from Weibull posteriors to Gamma priors, and a test for analytic divergences.

Importing this module registers the divergences with torch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from pyro.distributions import MaskedDistribution
from torch import Tensor
from torch.distributions import (
    Distribution,
    Exponential,
    ExponentialFamily,
    Gamma,
    Independent,
    TransformedDistribution,
    Weibull,
    kl,
    register_kl,
)

from bara_pyro.core.distributions.weibull import EULER, MeanWeibull


@register_kl(MeanWeibull, Gamma)
@register_kl(MeanWeibull, Exponential)
def kl_mean_weibull(q: MeanWeibull, p: Gamma | Exponential) -> Tensor:
    r"""Return KL(MeanWeibull(m, kappa) || Gamma(a, b)) in nats, shape ``batch_shape``; Exponential: a = 1.

    .. math:: g (a \kappa - 1) - \log\kappa + b m - 1 - a (\log(b m) - \log\Gamma(1 + \kappa)) + \log\Gamma(a)

    with Euler's constant g. This is the divergence of WHAI (Zhang et al. 2018, arXiv 1803.01328) in the
    parameters of :class:`MeanWeibull`, in which every Gamma function is inside a logarithm. It is exactly 0
    if both distributions are equal: ``m = 1 / b``, ``kappa = a = 1``.
    """
    a, b = _numbers(p)
    if a.dim() == b.dim() == 0 and not (a.requires_grad or b.requires_grad):
        return _OneNode.apply(q.mean, q.kappa, q.log_norm, a, b)
    return _weibull_gamma(q.kappa, -q.log_norm, q.mean, a, b)


@register_kl(Weibull, Gamma)
@register_kl(Weibull, Exponential)
def kl_weibull(q: Weibull, p: Gamma | Exponential) -> Tensor:
    """Return KL(Weibull(scale, concentration) || Gamma or Exponential) in nats, for torch's Weibull.

    At unit scale and ``concentration < 0.03`` the mean overflows float32, and so does the divergence.
    """
    kappa = q.concentration_reciprocal
    log_gamma = torch.lgamma(1 + kappa)
    return _weibull_gamma(kappa, log_gamma, q.scale * torch.exp(log_gamma), *_numbers(p))


def _numbers(p: Gamma | Exponential) -> tuple[Tensor, Tensor]:
    """Return concentration and rate; scalars if each has the same value everywhere by expansion."""
    b = unexpanded(p.rate)
    a = unexpanded(p.concentration) if isinstance(p, Gamma) else b.new_ones(())
    return (a.reshape(()), b.reshape(())) if a.numel() == b.numel() == 1 else (a, b)


def _weibull_gamma(kappa: Tensor, log_gamma: Tensor, mean: Tensor, a: Tensor, b: Tensor) -> Tensor:
    # Each group alone is 0 at kappa = a = b * mean = 1. b * mean and its logarithm are grouped because
    # b * (1 / b) may round to 1 - eps, and (1 - eps) - 1 - log(1 - eps) still rounds to 0.
    scaled_mean = mean * b
    shape = torch.addcmul(torch.lgamma(a) - EULER, a * EULER, kappa) - kappa.log()
    return shape + torch.addcmul(scaled_mean - 1, a, scaled_mean.log() - log_gamma, value=-1)


class _OneNode(torch.autograd.Function):
    """KL of a MeanWeibull to a prior with two scalar parameters, with a gradient in 5 operations.

    The gradient of `log_norm` is left to its owner: draws have one as well, and digamma is slow.
    """

    # With a separate setup_context torch would inspect this signature at every call, which takes 0.3 ms.
    @staticmethod
    def forward(ctx: Any, mean: Tensor, kappa: Tensor, log_norm: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(mean, kappa, a, b)
        return _weibull_gamma(kappa, -log_norm, mean, a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        mean, kappa, a, b = ctx.saved_tensors
        grad = unexpanded(grad)  # one number for the r entries of a gate, which the loss sums
        # Products and quotients: torch's addcdiv takes twice as long if it has to broadcast.
        opposite = -grad
        of_log_norm = opposite * a
        of_kappa = torch.add(opposite / kappa, of_log_norm, alpha=-EULER)
        return b * grad + of_log_norm / mean, of_kappa, of_log_norm.expand_as(mean), None, None


def unexpanded(value: Tensor) -> Tensor:
    """Return ``value`` with its expanded dimensions reduced to size 1.

    Plates expand a prior's two numbers to ``B x T x r``; their lgamma is needed only once.
    """
    if 0 not in value.stride():
        return value
    return value[tuple(slice(1) if stride == 0 else slice(None) for stride in value.stride())]


_TRANSFORMED = (TransformedDistribution, TransformedDistribution)
_EXPONENTIAL_FAMILY = (ExponentialFamily, ExponentialFamily)


def has_analytic_kl(q: Distribution, p: Distribution) -> bool:
    """Return whether ``kl_divergence(q, p)`` has a closed form for a posterior q and a prior p.

    Pyro's ``TraceMeanField_ELBO`` catches ``NotImplementedError`` and then silently estimates the divergence
    from one draw. This function checks beforehand, at the cost of a few dictionary look-ups.

    A rule also serves subclasses, except a user's subclass with another ``log_prob``, which is another
    distribution. ``to_event`` and ``mask`` are unwrapped on both sides. An ``ExpandedDistribution`` (from a
    class without its own ``expand``) has no divergence in Pyro, so the result is False.
    """
    if isinstance(q, MaskedDistribution) and isinstance(p, MaskedDistribution):
        return q._mask is False or p._mask is False or has_analytic_kl(q.base_dist, p.base_dist)
    if isinstance(q, Independent) and isinstance(p, Independent):
        return _independent(q, p)
    rule = _rule(type(q), type(p), len(kl._KL_REGISTRY))  # type: ignore[arg-type]
    if rule is kl._KL_REGISTRY[_TRANSFORMED]:  # holds for equal transforms only
        same = q.transforms == p.transforms and q.event_shape == p.event_shape  # type: ignore[attr-defined]
        return same and has_analytic_kl(q.base_dist, p.base_dist)  # type: ignore[attr-defined]
    if rule is kl._KL_REGISTRY[_EXPONENTIAL_FAMILY]:
        return type(q) is type(p)
    return rule is not NotImplemented


def _independent(q: Independent, p: Independent) -> bool:
    """Remove the event dimensions that both have, as Pyro's rule for ``Independent`` does."""
    extra = q.reinterpreted_batch_ndims - p.reinterpreted_batch_ndims
    rest_q = Independent(q.base_dist, extra) if extra > 0 else q.base_dist
    rest_p = Independent(p.base_dist, -extra) if extra < 0 else p.base_dist
    return has_analytic_kl(rest_q, rest_p)


@lru_cache(maxsize=256)
def _rule(q: type, p: type, registered: int) -> object:
    """Return the rule that torch would apply; ``registered`` invalidates the cache when a rule is added."""
    rule = kl._dispatch_kl(q, p)
    pairs = [pair for pair, known in kl._KL_REGISTRY.items() if known is rule]
    serves = any(_has_density_of(q, one) and _has_density_of(p, other) for one, other in pairs)
    return rule if serves else NotImplemented


def _has_density_of(distribution: type, parent: type) -> bool:
    """Whether a class is `parent` or a subclass with the same density; a user's subclass may change it."""
    if not issubclass(distribution, parent):
        return False
    between = distribution.__mro__[: distribution.__mro__.index(parent)]
    others = (c for c in between if c.__module__.split(".")[0] not in ("torch", "pyro", "bara_pyro"))
    return not any("log_prob" in vars(c) for c in others)

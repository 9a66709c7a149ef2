"""Analytic KL divergences of further pairs, from one table of moments and one of cross-entropies.

A posterior family q provides its moments, and a prior p its cross-entropy ``-E_q[log p(t)]`` as a function of
them. KL(q || p) is the cross-entropy minus the entropy of q. A new family needs one entry and the pairs that
it serves in ``PAIRS``.

Pairs without an entry:

* pairs that torch provides (Gamma || Gamma, Gamma || Exponential, LogNormal || LogNormal) or that :mod:`.kl`
  implements so that they are exact at zero (Weibull || Gamma, Weibull || Exponential);
* InverseGamma with a Weibull or Gamma posterior: E[1/t] is infinite for ``kappa >= 1`` (Gamma:
  ``concentration <= 1``), and a single such entry would make the whole loss infinite;
* HalfCauchy: E[log(1 + t^2)] has no closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Exponential,
    Gamma,
    HalfNormal,
    InverseGamma,
    LogNormal,
    Weibull,
    register_kl,
)

from bara_pyro.core.distributions.kl import unexpanded
from bara_pyro.core.distributions.weibull import EULER, MeanWeibull


class Moments(NamedTuple):
    """Moments of a positive distribution q, each of shape ``batch_shape``; the costly ones are functions."""

    entropy: Tensor
    """Differential entropy in nats."""
    mean_log: Tensor
    """E[log t]."""
    var_log: Callable[[], Tensor]
    """Var[log t]."""
    log_power: Callable[[int], Tensor]
    """``s -> log E[t ** s]``."""


def _weibull(kappa: Tensor, log_scale: Tensor, entropy: Tensor) -> Moments:
    return Moments(
        entropy=entropy,
        mean_log=log_scale - EULER * kappa,
        var_log=lambda: kappa.square() * (math.pi**2 / 6),
        log_power=lambda s: s * log_scale + torch.lgamma(1 + s * kappa),
    )


def _gamma(q: Gamma) -> Moments:
    a, log_b = q.concentration, q.rate.log()
    return Moments(
        entropy=q.entropy(),
        mean_log=torch.digamma(a) - log_b,
        var_log=lambda: torch.polygamma(1, a),
        log_power=lambda s: _log_rising(a, s) - s * log_b,
    )


def _log_rising(a: Tensor, s: float) -> Tensor:
    """Return `log(Gamma(a + s) / Gamma(a))`.

    In float32 at a = 1e4 the difference of two `lgamma` values has no correct digit.
    """
    if s == 1:
        return a.log()
    if s == 2:
        return a.log() + (a + 1).log()
    return torch.lgamma(a + s) - torch.lgamma(a)


def _log_normal(q: LogNormal) -> Moments:
    loc, variance = q.loc, q.scale.square()
    return Moments(
        entropy=loc + q.scale.log() + 0.5 * math.log(2 * math.pi * math.e),
        mean_log=loc,
        var_log=lambda: variance,
        log_power=lambda s: s * loc + 0.5 * s**2 * variance,
    )


def _from_gamma(q: Moments, p: Gamma) -> Tensor:
    a, b = unexpanded(p.concentration), unexpanded(p.rate)
    return torch.lgamma(a) - a * b.log() - (a - 1) * q.mean_log + b * q.log_power(1).exp()


def _from_exponential(q: Moments, p: Exponential) -> Tensor:
    rate = unexpanded(p.rate)
    return rate * q.log_power(1).exp() - rate.log()


def _from_half_normal(q: Moments, p: HalfNormal) -> Tensor:
    log_scale = unexpanded(p.scale).log()
    return 0.5 * math.log(math.pi / 2) + log_scale + 0.5 * (q.log_power(2) - 2 * log_scale).exp()


def _from_log_normal(q: Moments, p: LogNormal) -> Tensor:
    loc, scale = unexpanded(p.loc), unexpanded(p.scale)
    square = (q.var_log() + (q.mean_log - loc).square()) / scale.square()
    return q.mean_log + scale.log() + 0.5 * math.log(2 * math.pi) + 0.5 * square


def _from_inverse_gamma(q: Moments, p: InverseGamma) -> Tensor:
    a, b = unexpanded(p.concentration), unexpanded(p.rate)
    return torch.lgamma(a) - a * b.log() + (a + 1) * q.mean_log + b * q.log_power(-1).exp()


MOMENTS: dict[type[Distribution], Callable[..., Moments]] = {
    MeanWeibull: lambda q: _weibull(q.kappa, q.log_scale, q.entropy()),
    Weibull: lambda q: _weibull(q.concentration_reciprocal, q.scale.log(), q.entropy()),
    Gamma: _gamma,
    LogNormal: _log_normal,
}
CROSS_ENTROPIES: dict[type[Distribution], Callable[..., Tensor]] = {
    Gamma: _from_gamma,
    Exponential: _from_exponential,
    HalfNormal: _from_half_normal,
    LogNormal: _from_log_normal,
    InverseGamma: _from_inverse_gamma,
}
PAIRS: tuple[tuple[type[Distribution], type[Distribution]], ...] = (
    (MeanWeibull, HalfNormal),
    (MeanWeibull, LogNormal),
    (Weibull, HalfNormal),
    (Weibull, LogNormal),
    (Gamma, HalfNormal),
    (Gamma, LogNormal),
    (LogNormal, Gamma),
    (LogNormal, Exponential),
    (LogNormal, HalfNormal),
    (LogNormal, InverseGamma),
)


def _register(family: type[Distribution], prior: type[Distribution]) -> None:
    moments, cross_entropy = MOMENTS[family], CROSS_ENTROPIES[prior]

    def divergence(q: Distribution, p: Distribution) -> Tensor:
        known = moments(q)
        return cross_entropy(known, p) - known.entropy

    register_kl(family, prior)(divergence)


for _pair in PAIRS:
    _register(*_pair)

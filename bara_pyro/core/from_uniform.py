"""Turn uniform random numbers into draws of a distribution, by its quantile function or a registered rule."""

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any, NoReturn

import torch
from pyro.distributions import Delta, MaskedDistribution
from pyro.distributions.torch_distribution import ExpandedDistribution
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Distribution,
    Gamma,
    HalfCauchy,
    HalfNormal,
    Independent,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
)

from bara_pyro.core.distributions import MeanWeibull
from bara_pyro.core.distributions.normal import KroneckerNormal
from bara_pyro.core.distributions.signs import Signs, from_numbers
from bara_pyro.errors import ConfigError

Uniform = Callable[[int], Tensor]
Rule = Callable[[Any, Uniform], Tensor]
"""`Uniform`: stream number -> uniform numbers in (0, 1), float32, in the shape of the value to draw."""

ATTEMPTS = 64  # limit of a rejection sampler that accepts at least 95 % per attempt


class FromUniform:
    """Draw from distributions by their quantile function (`icdf`) or by a rule registered for the class.

    A rule also serves subclasses, unless they override `icdf`, which is then used. A subclass that overrides
    `rsample` without `icdf` or a rule is refused, because it may be another distribution.
    """

    def __call__(self, fn: Distribution, numbers: Uniform) -> Tensor:
        """Return a draw of `fn`.

        Args:
            fn: the distribution.
            numbers: function from a stream number to uniform numbers; stream 0 is used first.

        Raises:
            ConfigError: `fn` has neither an `icdf` nor a rule.
        """
        classes = type(fn).__mro__

        def above(name: str) -> int:
            return next(place for place, kind in enumerate(classes) if name in vars(kind))

        owner = next(place for place, kind in enumerate(classes) if kind in _rule.registry)
        drawn, quantile = above("rsample"), above("icdf")
        if classes[owner] is not object and owner <= min(drawn, quantile):
            return _rule.registry[classes[owner]](fn, numbers)
        if quantile <= drawn:
            return _by_quantile(fn, numbers)
        return _refused(fn)

    def register(self, rule: Rule) -> Rule:
        """Register a rule for the class in the annotation of its first argument."""
        return _rule.register(rule)


from_uniform = FromUniform()


def _by_quantile(fn: Distribution, numbers: Uniform) -> Tensor:
    try:
        return fn.icdf(numbers(0))
    except NotImplementedError:
        return _refused(fn)


def _refused(fn: Distribution) -> NoReturn:
    raise ConfigError(
        f"A {type(fn).__name__} has no icdf, which prediction needs to draw from it: define one, or register "
        "a rule with bara_pyro.core.from_uniform.from_uniform.register."
    )


@singledispatch
def _rule(fn: Any, numbers: Uniform) -> Tensor:
    return _refused(fn)


@from_uniform.register
def _(fn: MaskedDistribution, numbers: Uniform) -> Tensor:
    return from_uniform(fn.base_dist, numbers)


@from_uniform.register
def _(fn: ExpandedDistribution, numbers: Uniform) -> Tensor:
    return from_uniform(fn.base_dist, numbers)


@from_uniform.register
def _(fn: Independent, numbers: Uniform) -> Tensor:
    return from_uniform(fn.base_dist, numbers)


@from_uniform.register
def _(fn: TransformedDistribution, numbers: Uniform) -> Tensor:
    value = from_uniform(fn.base_dist, numbers)
    for change in fn.transforms:
        value = change(value)
    return value


@from_uniform.register
def _(fn: Delta, numbers: Uniform) -> Tensor:
    return fn.v


@from_uniform.register
def _(fn: Bernoulli, numbers: Uniform) -> Tensor:
    return (numbers(0) < fn.probs).to(fn.probs.dtype)


@from_uniform.register
def _(fn: Signs, numbers: Uniform) -> Tensor:
    return from_numbers(numbers(0))


@from_uniform.register
def _(fn: MeanWeibull, numbers: Uniform) -> Tensor:
    log_energy = numbers(0).log_().neg_().log_()
    value = fn.mean * torch.addcmul(fn.log_norm, fn.kappa, log_energy).exp_()
    return value.clamp_min_(torch.finfo(value.dtype).tiny)  # at large kappa a draw can underflow to 0


@from_uniform.register
def _(fn: KroneckerNormal, numbers: Uniform) -> Tensor:
    return fn.of_noise(_normal(numbers(0)).to(fn.scale.dtype))


@from_uniform.register
def _(fn: MultivariateNormal, numbers: Uniform) -> Tensor:
    noise = _normal(numbers(0)).to(fn.loc.dtype)
    return fn.loc + torch.einsum("...ij,...j->...i", fn.scale_tril, noise)


@from_uniform.register
def _(fn: Gamma, numbers: Uniform) -> Tensor:
    """Draw by Marsaglia and Tsang's method (ACM TOMS 26, 2000); every attempt has its own streams."""
    shape = fn.concentration + (fn.concentration < 1).to(fn.concentration.dtype)
    third = shape - 1 / 3
    scale = (9 * third).rsqrt()
    sample, waiting = torch.ones_like(shape), torch.ones_like(shape, dtype=torch.bool)
    for attempt in range(ATTEMPTS):
        normal, level = _normal(numbers(2 * attempt + 1)), numbers(2 * attempt + 2)
        cube = (1 + scale * normal).pow(3)
        bound = 0.5 * normal.square() + third * (1 - cube + cube.clamp_min(1e-30).log())
        accepted = (cube > 0) & (level.log() < bound)
        sample = torch.where(waiting & accepted, third * cube, sample)
        waiting = waiting & ~accepted
        if not waiting.any():
            break
    # For a concentration below 1: a draw with concentration + 1, times a power of a uniform number.
    lifted = numbers(0).log() / fn.concentration * (fn.concentration < 1)
    tiny = torch.finfo(fn.rate.dtype).tiny
    return (sample.clamp_min(tiny) * lifted.exp() / fn.rate).clamp_min(tiny)


@from_uniform.register
def _(fn: Normal, numbers: Uniform) -> Tensor:
    return fn.loc + fn.scale * _normal(numbers(0))


# Quantiles that stay exact near 0 and 1: torch's icdf rounds (u + 1) / 2 to 1 there and returns infinity.
@from_uniform.register
def _(fn: HalfNormal, numbers: Uniform) -> Tensor:
    return fn.scale * torch.erfinv(numbers(0)).mul_(math.sqrt(2))


@from_uniform.register
def _(fn: HalfCauchy, numbers: Uniform) -> Tensor:
    level = numbers(0)
    smaller = torch.tan(math.pi / 2 * torch.minimum(level, 1 - level))
    return fn.scale * torch.where(level < 0.5, smaller, 1 / smaller)


def _normal(numbers: Tensor) -> Tensor:
    return torch.erfinv(2 * numbers - 1).mul_(math.sqrt(2))

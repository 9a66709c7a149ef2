"""Whether a pair of distributions has an analytic KL divergence, without computing it."""

from __future__ import annotations

from functools import lru_cache

from pyro.distributions import MaskedDistribution
from torch.distributions import (
    Distribution,
    ExponentialFamily,
    Independent,
    TransformedDistribution,
    kl,
)

_TRANSFORMED = (TransformedDistribution, TransformedDistribution)
_EXPONENTIAL_FAMILY = (ExponentialFamily, ExponentialFamily)


def has_analytic_kl(q: Distribution, p: Distribution) -> bool:
    """Return whether ``kl_divergence(q, p)`` has a closed form for this pair.

    Pyro's ``TraceMeanField_ELBO`` finds out by catching ``NotImplementedError``, and then estimates the
    divergence from one draw without a word. This answers first, and costs a few dictionary look-ups.

    A rule serves subclasses, but not a user's own with another ``log_prob``, which is another distribution.
    Looks through ``to_event`` and ``mask``, on both sides. An ``ExpandedDistribution`` (from a class without
    an ``expand`` of its own) has no divergence in Pyro, hence none here.

    Args:
        q: Posterior.
        p: Prior.

    Returns:
        True if the divergence is analytic.

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
    """Strip the event dimensions that both have, as Pyro's rule for ``Independent`` does."""
    extra = q.reinterpreted_batch_ndims - p.reinterpreted_batch_ndims
    rest_q = Independent(q.base_dist, extra) if extra > 0 else q.base_dist
    rest_p = Independent(p.base_dist, -extra) if extra < 0 else p.base_dist
    return has_analytic_kl(rest_q, rest_p)


@lru_cache(maxsize=256)
def _rule(q: type, p: type, registered: int) -> object:
    """Return the rule that torch would apply; ``registered`` renews the entry when a pair is added."""
    rule = kl._dispatch_kl(q, p)
    pairs = [pair for pair, known in kl._KL_REGISTRY.items() if known is rule]
    serves = any(_has_density_of(q, one) and _has_density_of(p, other) for one, other in pairs)
    return rule if serves else NotImplemented


def is_known(distribution: type) -> bool:
    """Whether a distribution is torch's, Pyro's or this package's, and none of a user's own."""
    return distribution.__module__.split(".")[0] in ("torch", "pyro", "bara_pyro")


def _has_density_of(distribution: type, parent: type) -> bool:
    """Whether a class is a parent or its subclass with that density: a user's own may have another."""
    if not issubclass(distribution, parent):
        return False
    between = distribution.__mro__[: distribution.__mro__.index(parent)]
    return not any("log_prob" in vars(c) and not is_known(c) for c in between)

"""Registry of the gates' priors: each is a function from hyperparameters to a distribution over t > 0.

Register your own in three lines; its name is then a configuration value::

    @register_prior("weibull")
    def weibull(scale=1.0, concentration=1.0):
        return dist.Weibull(scale, concentration)
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from bara_pyro.errors import ConfigError, unknown
from bara_pyro.registry import Registry
from bara_pyro.types import Fields

Builder = TypeVar("Builder", bound=Callable[..., TorchDistribution])
Hyper = float | Tensor
Prior = str | Fields | TorchDistribution | Callable[[], TorchDistribution]
"""A name, a name with hyper-parameters, a distribution, or a function called in every run of the program."""

GATES = (1e-3, 1.0, 1e3)  # gate values at which every prior must have a density
BELOW = torch.tensor(-1.0)  # no value of a gate
PRIORS: Registry[Callable[..., TorchDistribution]] = Registry("prior", "bara_pyro.priors")
"""Name -> function of hyperparameters; its signature defines their names and defaults."""


def register_prior(name: str) -> Callable[[Builder], Builder]:
    """Register the decorated function as the prior ``name``.

    Every parameter needs a default. ``make_prior`` calls the function with scalar tensors and Pyro's
    validation off, and checks the values against the ``arg_constraints`` of the distribution returned, whose
    batch and event shape are ``()``.

    Args:
        name: Name of the prior in ``make_prior`` and in settings.

    Returns:
        A decorator that registers a function of hyperparameters and returns it unchanged.

    Raises:
        ConfigError: The decorator is used without a name (``@register_prior``), or the name is taken.

    Examples:
        >>> import bara_pyro as bp
        >>> import pyro.distributions as dist
        >>> @bp.register_prior("weibull")
        ... def weibull(scale=1.0, concentration=1.0):
        ...     return dist.Weibull(scale, concentration)
        >>> bp.make_prior("weibull", scale=2.0)
        Weibull(scale: 2.0, concentration: 1.0)
    """
    return PRIORS.named(name)


def make_prior(name: str, *, device: torch.device | str | None = None, **hyper: float) -> TorchDistribution:
    """Return the prior ``name`` with the given hyperparameters; its batch and event shape are ``()``.

    Args:
        name: One of ``PRIORS``.
        device: Device of its parameters and draws; the CPU by default.
        hyper: Hyperparameters by name; the others keep their defaults.

    Raises:
        ConfigError: If the name or a hyperparameter is unknown, a value is invalid, a hyperparameter has no
            default, or the support of the prior is not t > 0.

    Examples:
        >>> import bara_pyro as bp
        >>> bp.make_prior("gamma", concentration=0.5)
        Gamma(concentration: 0.5, rate: 1.0)
    """
    build = PRIORS.find(name)
    known = inspect.signature(build).parameters
    for key, value in hyper.items():
        if key not in known:
            raise ConfigError(unknown(f"hyperparameter of prior {name!r}:", key, known))
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"Prior {name!r} needs a finite number for {key}, not {value!r}.")
    for key, parameter in known.items():
        if key not in hyper and parameter.default is parameter.empty:
            raise ConfigError(f"The prior {name!r} has no default for {key!r}: add one, such as {key}=1.0.")
    values = {key: float(hyper.get(key, parameter.default)) for key, parameter in known.items()}
    with dist.validation_enabled(False):
        prior = build(**{key: torch.tensor(value, device=device) for key, value in values.items()})
    for key, constraint in prior.arg_constraints.items():
        held = getattr(prior, key, None)
        if isinstance(held, Tensor) and not held.is_meta and not constraint.check(held).all():
            needed = "a positive" if constraint is constraints.positive else f"a {constraint}"
            shown = values.get(key, held.tolist())
            owner = "" if key in values else f"'s {type(prior).__name__}"
            raise ConfigError(f"Prior {name!r}{owner} needs {needed} {key}, not {shown!r}.")
    check_gate_prior(prior, repr(name), device)
    prior._validate_args = False  # checked once here instead of in every expand and log_prob
    return prior


def check_gate_prior(prior: TorchDistribution, name: str, device: torch.device | str | None = None) -> None:
    """Raise a `ConfigError` unless a prior of gates has a density at every t > 0 and none below 0.

    All entries are checked. `name` is for the error message, `device` that of the parameters.
    """
    outside = [t for t in GATES if not _inside(prior, torch.tensor(t, device=device))]
    if outside:
        raise ConfigError(
            f"The prior {name} has no density at {outside[0]:g}: give one that covers all t > 0."
        )
    if _has_density(prior, BELOW.to(device)):
        raise _not_positive(name)


def _not_positive(prior: str) -> ConfigError:
    return ConfigError(
        f"The prior {prior} has a density at -1, but gates are positive: give one that covers t > 0 only, "
        "such as halfnormal."
    )


def _inside(prior: TorchDistribution, t: Tensor) -> bool:
    """Whether t is in the support; `log_prob` is used because transformed distributions check their base."""
    if t.is_meta:
        return True
    try:
        with dist.validation_enabled():
            prior.log_prob(t)
    except ValueError:
        return False
    return True


def _has_density(prior: TorchDistribution, t: Tensor) -> bool:
    """Whether a distribution has a density at t, even if its declared support is wrong."""
    if t.is_meta or not _inside(prior, t):
        return False
    return bool((prior.log_prob(t) > -math.inf).any())


def centre_of(prior: Prior) -> float:
    """Return the mean of a prior; raise `ConfigError` if it has none."""
    mean = current_prior(given_prior(prior, torch.device("cpu"))).mean
    if not mean.isfinite().all() or mean.numel() > 1:
        raise ConfigError(f"The prior {prior!r} has no mean to centre theta at: choose another theta_prior.")
    return float(mean)


def given_prior(prior: Prior, device: torch.device) -> TorchDistribution | Callable[[], TorchDistribution]:
    """Return a prior as a distribution, or the function that returns it."""
    if isinstance(prior, str) or (isinstance(prior, Mapping) and "name" in prior):
        return make_prior(**({"name": prior} if isinstance(prior, str) else prior), device=device)
    if isinstance(prior, TorchDistributionMixin):
        check_gate_prior(prior, repr(prior), device)
        return prior
    if callable(prior):
        try:
            inspect.signature(prior).bind()
        except TypeError as error:
            raise ConfigError(
                f"The prior {prior!r} is called without arguments ({error}): give a distribution, or a "
                "function without arguments, such as lambda: dist.Gamma(a, 1.0)."
            ) from None
        return prior
    raise ConfigError(
        f"A prior is a name, its settings, a distribution or a function that returns one, not {prior!r}: "
        "give 'gamma', or {'name': 'gamma', 'rate': 2}, or dist.Gamma(1.0, 2.0)."
    )


def current_prior(prior: TorchDistribution | Callable[[], TorchDistribution]) -> TorchDistribution:
    """Return the distribution that a prior is in this run."""
    distribution = prior if isinstance(prior, TorchDistributionMixin) else prior()
    if not isinstance(distribution, TorchDistributionMixin):
        raise ConfigError(
            f"The function of a prior returned {distribution!r}: return a distribution of Pyro."
        )
    if event := tuple(distribution.event_shape):
        raise ConfigError(
            f"The prior {distribution!r} has the event shape {event}, but a prior is that of one gate: leave "
            "out `.to_event`."
        )
    # By its declared support alone: this runs in every step, and must not wait for a device.
    if distribution is not prior and distribution.support.check(BELOW).any():
        raise _not_positive(repr(distribution))
    return distribution


@register_prior("gamma")
def gamma(concentration: Hyper = 1.0, rate: Hyper = 1.0) -> TorchDistribution:
    """Gamma: the paper's prior is (1, 1); a concentration below 1 favours gates near 0."""
    return dist.Gamma(concentration, rate)


@register_prior("exponential")
def exponential(rate: Hyper = 1.0) -> TorchDistribution:
    """Exponential: the Gamma prior with concentration 1."""
    return dist.Exponential(rate)


@register_prior("halfnormal")
def halfnormal(scale: Hyper = 1.0) -> TorchDistribution:
    """Half-normal: a lighter tail than any Gamma."""
    return dist.HalfNormal(scale)


@register_prior("halfcauchy")
def halfcauchy(scale: Hyper = 1.0) -> TorchDistribution:
    """Half-Cauchy: the scale prior of horseshoe models; no posterior family has an analytic KL to it."""
    return dist.HalfCauchy(scale)


@register_prior("inversegamma")
def inversegamma(concentration: Hyper = 2.0, rate: Hyper = 1.0) -> TorchDistribution:
    """Inverse-Gamma: keeps gates away from 0; only LogNormal posteriors have an analytic KL to it."""
    return dist.InverseGamma(concentration, rate)


@register_prior("lognormal")
def lognormal(loc: Hyper = 0.0, scale: Hyper = 1.0) -> TorchDistribution:
    """Log-normal: symmetric about ``loc`` on the log scale."""
    return dist.LogNormal(loc, scale)

"""Registry of the gates' posterior families: subclasses of `AmortizedGuide`, by name."""

from collections.abc import Callable
from typing import TypeVar

from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.registry import Registry

Family = TypeVar("Family", bound=type[AmortizedGuide])

FAMILIES: Registry[type[AmortizedGuide]] = Registry(
    "guide", "bara_pyro.guides", ("bara_pyro.guides.*",), of=type
)
"""Posterior families of this package, and those that installed packages provide as entry points."""


def register_guide(name: str) -> Callable[[Family], Family]:
    """Register the decorated class as the posterior family `name`, for `--set method.guide=name`.

    Raises:
        ConfigError: the decorator is used without a name, or the name is taken.

    Examples:
        >>> import bara_pyro as bp
        >>> import pyro.distributions as dist
        >>> @bp.guides.register_guide("exponential")
        ... class ExponentialGuide(bp.guides.AmortizedGuide):
        ...     noisy = False  # its mean fixes its spread: there is no noise level to learn
        ...     def family(self, mean, kappa):
        ...         return dist.Exponential(1 / mean)
        >>> method = {"name": "bara", "guide": "exponential"}
        >>> run = bp.train(method=method, steps=1, limit=8, out="runs/mine")
        >>> type(run.guide).__name__
        'ExponentialGuide'
    """
    return FAMILIES.named(name)

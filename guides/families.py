"""The posterior families of the gates by name: subclasses of `AmortizedGuide`, one a file beside this one."""

from collections.abc import Callable
from typing import TypeVar

from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.registry import Registry

Family = TypeVar("Family", bound=type[AmortizedGuide])

FAMILIES: Registry[type[AmortizedGuide]] = Registry(
    "guide", "bara_pyro.guides", ("bara_pyro.guides.*",), of=type
)
"""Those of this package, and those that installed packages offer as entry points."""


def register_guide(name: str) -> Callable[[Family], Family]:
    """Register the decorated class as the posterior family `name`, for `--set method.guide=name`.

    Raises:
        ConfigError: there is no name, or it is taken.

    Examples:
        >>> import bara_pyro as bp
        >>> import pyro.distributions as dist
        >>> @bp.guides.register_guide("exponential")
        ... class ExponentialGuide(bp.guides.AmortizedGuide):
        ...     noisy = False  # as uncertain as it is large: no noise level is learnt
        ...     def family(self, mean, kappa):
        ...         return dist.Exponential(1 / mean)
        >>> method = {"name": "bara", "guide": "exponential"}
        >>> run = bp.train(method=method, steps=1, limit=8, out="runs/mine")
        >>> type(run.guide).__name__
        'ExponentialGuide'
    """
    return FAMILIES.named(name)

"""The posterior families of the gates by name: subclasses of `AmortizedGuide`, one a file beside this one."""

from collections.abc import Callable
from typing import TypeVar

from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.registry import Registry

Family = TypeVar("Family", bound=type[AmortizedGuide])

FAMILIES: Registry[type[AmortizedGuide]] = Registry("guide", "bara_pyro.guides", ("bara_pyro.guides.*",))
"""Those of this package, and those that installed packages offer as entry points."""


def register_guide(name: str) -> Callable[[Family], Family]:
    """Register the decorated class as the posterior family `name`, for `--set method.guide=name`.

    Raises:
        ConfigError: there is no name, or it is taken.
    """
    return FAMILIES.named(name)

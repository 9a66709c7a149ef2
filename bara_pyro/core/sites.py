"""What Pyro and torch hand out without a type: the value of a site, its distribution, modules by name."""

from collections.abc import Mapping
from functools import cache
from types import new_class
from typing import TypeVar, cast

from pyro.distributions import TorchDistribution
from pyro.nn import PyroModule
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from bara_pyro.core.frozen import Module

Kind = TypeVar("Kind", bound=nn.Module)


def distribution_of(site: Message) -> TorchDistribution:
    """Return the distribution of a site that was sampled."""
    return cast(TorchDistribution, site["fn"])


def value_of(site: Message) -> Tensor:
    """Return the value of a site that was sampled."""
    return cast(Tensor, site["value"])


@cache
def seen_by_pyro(kind: type[Kind]) -> type[Kind]:
    """Return the subclass of a torch module whose parameters Pyro sees, those that are to be trained."""
    seen = type(PyroModule).__getitem__(PyroModule, kind)
    return cast(type[Kind], new_class(seen.__name__, (Module, seen)))


def module_key(name: str) -> str:
    """Return a module path or a site's name as the name of a submodule, which must not contain dots."""
    return name.replace(".", "/")


def by_name(modules: Mapping[str, Kind]) -> Mapping[str, Kind]:
    """Return modules by the `module_key` of their names as one module, for an attribute of a `PyroModule`."""
    keyed = {module_key(name): module for name, module in modules.items()}
    return cast(Mapping[str, Kind], seen_by_pyro(nn.ModuleDict)(keyed))

"""Modules whose frozen parameters Pyro does not see, modules by name, and the types of what Pyro gives."""

from collections.abc import Mapping
from functools import cache
from types import new_class
from typing import Any, TypeVar, cast

from pyro.distributions import TorchDistribution
from pyro.nn import PyroModule
from pyro.poutine.runtime import Message
from torch import Tensor, nn


class Module(PyroModule):
    """A `PyroModule` of whose parameters Pyro sees those alone that are to be trained.

    Reading one is a `pyro.param` statement, and Pyro's store sets `requires_grad` of whatever it takes: stock
    `pyro.infer.SVI` would train what a person, or a method, has frozen.
    """

    def __getattr__(self, name: str) -> Any:
        """Return a frozen parameter as it is, past Pyro's sight; all else as Pyro does."""
        value = self.__dict__.get("_parameters", {}).get(name)
        return super().__getattr__(name) if value is None or value.requires_grad else value


def frozen(value: Tensor) -> nn.Parameter:
    """Return a parameter that takes no gradient."""
    return nn.Parameter(value, requires_grad=False)


def read(module: nn.Module, name: str) -> Tensor:
    """Return a frozen parameter of a module that has one, which others lack."""
    value = module._parameters[name]
    if value is None:
        raise LookupError(f"{type(module).__name__} has no parameter {name!r}.")
    return value


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

"""Torch modules that hide frozen parameters from Pyro, and typed access to Pyro's messages."""

from collections.abc import Mapping
from functools import cache
from types import new_class
from typing import Any, TypeVar, cast

from pyro.distributions import ExpandedDistribution, Independent, MaskedDistribution, TorchDistribution
from pyro.nn import PyroModule
from pyro.poutine.runtime import Message
from torch import Tensor, nn


class Module(PyroModule):
    """A `PyroModule` that shows Pyro only its trainable parameters.

    Reading a parameter of a PyroModule is a `pyro.param` statement, and Pyro's store sets `requires_grad` of
    everything it takes. Stock `pyro.infer.SVI` would therefore train frozen parameters.
    """

    def __getattr__(self, name: str) -> Any:
        """Return a frozen parameter directly, and everything else as Pyro does."""
        value = self.__dict__.get("_parameters", {}).get(name)
        return super().__getattr__(name) if value is None or value.requires_grad else value


def frozen(value: Tensor) -> nn.Parameter:
    """Return a parameter that requires no gradient."""
    return nn.Parameter(value, requires_grad=False)


def read(module: nn.Module, name: str) -> Tensor:
    """Return a module's parameter without Pyro's statement; a `LookupError` if it is None."""
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
    """Return a subclass of a torch module class that shows its trainable parameters to Pyro."""
    subclass = type(PyroModule).__getitem__(PyroModule, kind)
    return cast(type[Kind], new_class(subclass.__name__, (Module, subclass)))


def module_key(name: str) -> str:
    """Return a module path or site name without dots, for use as the name of a submodule."""
    return name.replace(".", "/")


def by_name(modules: Mapping[str, Kind]) -> Mapping[str, Kind]:
    """Return named modules as one `ModuleDict` under their `module_key`, for use in a `PyroModule`."""
    keyed = {module_key(name): module for name, module in modules.items()}
    return cast(Mapping[str, Kind], seen_by_pyro(nn.ModuleDict)(keyed))


def family_name(fn: TorchDistribution) -> str:
    """Return the name of a distribution's class, without the wrappers that Pyro puts around it."""
    while isinstance(fn, Independent | MaskedDistribution | ExpandedDistribution):
        fn = fn.base_dist
    return type(fn).__name__

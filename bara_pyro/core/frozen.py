"""Parameters that are set after training, not by it: saved like all others, moved by no optimiser."""

from typing import Any

from pyro.nn import PyroModule
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

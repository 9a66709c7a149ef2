"""Parameters that are set after training, not by it: saved like all others, moved by no optimiser."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


def frozen(value: Tensor) -> nn.Parameter:
    """Return a parameter that takes no gradient."""
    return nn.Parameter(value, requires_grad=False)


@contextmanager
def zeroed(value: Tensor) -> Iterator[None]:
    """Have a frozen parameter be 0, as it is before it is set, while the block runs."""
    kept = value.clone()
    value.zero_()
    try:
        yield
    finally:
        value.copy_(kept)


def read(module: nn.Module, name: str) -> Tensor:
    """Return a frozen parameter of a module past Pyro's sight.

    Read as an attribute of a `PyroModule` it would enter the parameter store, which makes it trainable again.
    """
    value = module._parameters[name]
    if value is None:
        raise LookupError(f"{type(module).__name__} has no parameter {name!r}.")
    return value

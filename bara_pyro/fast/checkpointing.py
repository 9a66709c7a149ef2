"""Activation checkpointing of the frozen layers, with the same latents in the recomputation.

Adapters do not run again: their updates, which are small beside a decoder layer's activations, are stored in
the forward pass, and the recomputed layers add them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Self

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from bara_pyro.fast.frozen_states import replaced_forward

Change = Callable[[nn.Module, tuple[Tensor], Tensor], Tensor]
"""A linear layer, its input and its output -> the update of the output."""


@contextmanager
def changing(changes: Mapping[nn.Module, Change], *, recomputed: Sequence[nn.Module] = ()) -> Iterator[None]:
    """Add updates to the outputs of linear layers while the block runs.

    Args:
        changes: layer -> function that returns the update of its output.
        recomputed: decoder layers that keep only their inputs and are recomputed for the gradient.
    """
    updates: dict[nn.Module, Tensor] = {}
    add = partial(_noted, updates) if recomputed else _added
    with ExitStack() as stack:
        for layer, change in changes.items():
            stack.callback(layer.register_forward_hook(partial(add, change)).remove)
        for layer in recomputed:
            modules = set(layer.modules())
            inside = [linear for linear in changes if linear in modules]
            contexts = partial(lambda inside: (nullcontext(), _Again(updates, inside)), inside)
            stack.enter_context(replaced_forward(layer, partial(_checkpointed, layer.forward, contexts)))
        yield


def _added(change_of: Change, layer: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
    return output + change_of(layer, args, output)


def _noted(
    updates: dict[nn.Module, Tensor], change_of: Change, layer: nn.Module, args: tuple[Tensor], output: Tensor
) -> Tensor:
    """Return a layer's output plus its update, and store the update."""
    # Hidden from the checkpoint; detached, because otherwise the stored tensor would keep itself alive.
    with saved_tensors_hooks(Tensor.detach, lambda saved: saved):
        change = change_of(layer, args, output)
    updates[layer] = change.detach()
    return output + change


class _Again(ExitStack):
    """Adds the stored updates to linear layers during their recomputation."""

    def __init__(self, changes: Mapping[nn.Module, Tensor], inside: Sequence[nn.Module]) -> None:
        super().__init__()
        self._changes, self._inside = changes, inside

    def __enter__(self) -> Self:
        for layer in self._inside:
            # With a gradient, so that autograd saves the same tensors in the same order as before.
            change = self._changes[layer].requires_grad_()
            self.callback(layer.register_forward_hook(partial(_add, change)).remove)
        return self


def _checkpointed(forward: Callable, contexts: Callable, *args: Any, **kwargs: Any) -> Any:
    # A frozen layer in evaluation mode draws no random numbers.
    return checkpoint(
        forward, *args, use_reentrant=False, preserve_rng_state=False, context_fn=contexts, **kwargs
    )


def _add(change: Tensor, layer: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
    return output + change

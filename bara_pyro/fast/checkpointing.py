"""Activation checkpointing of the frozen layers: what is computed again sees the latents that were drawn.

Adapters are not run again: what they compute (small beside a decoder layer's activations) is kept, and a
layer that is computed again in the backward pass adds the change that was made in the forward pass.
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
"""A linear layer, its input and its output -> what is added to the output."""


def added(change_of: Change, layer: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
    """Return a layer's output with its change added; what is noted of it is the business of `Recorded`."""
    return output + change_of(layer, args, output)


class Recorded:
    """The changes of one forward pass, by the linear layer that they were added to."""

    def __init__(self) -> None:
        self._changes: dict[nn.Module, Tensor] = {}

    def hook(self, change_of: Change, layer: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        """Return a layer's output with its change added, and note the change."""
        # Outside the checkpoint's sight; detached, because a tensor that is kept as it is keeps itself alive.
        with saved_tensors_hooks(Tensor.detach, lambda kept: kept):
            change = change_of(layer, args, output)
        self._changes[layer] = change.detach()
        return output + change

    @contextmanager
    def recomputing(self, layers: Sequence[nn.Module], adapted: Sequence[nn.Module]) -> Iterator[None]:
        """Keep only the inputs of these decoder layers, run in the block; `adapted` are changed inside."""
        with ExitStack() as stack:
            for layer in layers:
                own = set(layer.modules())
                inside = [linear for linear in adapted if linear in own]
                contexts = partial(lambda inside: (nullcontext(), _Again(self._changes, inside)), inside)
                forward = partial(_checkpointed, layer.forward, contexts)
                stack.enter_context(replaced_forward(layer, forward))
            yield


class _Again(ExitStack):
    """The noted changes are added to these linear layers while they are computed again, each time that is."""

    def __init__(self, changes: Mapping[nn.Module, Tensor], inside: Sequence[nn.Module]) -> None:
        super().__init__()
        self._changes, self._inside = changes, inside

    def __enter__(self) -> Self:
        for layer in self._inside:
            # With a gradient, so that autograd keeps what it kept before, in the same order.
            change = self._changes[layer].requires_grad_()
            self.callback(layer.register_forward_hook(partial(_add, change)).remove)
        return self


def _checkpointed(forward: Callable, contexts: Callable, *args: Any, **kwargs: Any) -> Any:
    # No random number is drawn in a frozen layer that does not train.
    return checkpoint(
        forward, *args, use_reentrant=False, preserve_rng_state=False, context_fn=contexts, **kwargs
    )


def _add(change: Tensor, layer: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
    return output + change

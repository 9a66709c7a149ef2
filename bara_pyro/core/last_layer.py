"""The last decoder layer for the last tokens, in training: what it makes of the others reaches no answer.

All tokens go as far as that layer's keys and values, and so through the adapters that make them, whose
latents count in the bound at every token. The tokens that are asked then go on, with the changes made before.
"""

from collections.abc import Iterable
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from bara_pyro.core.backbone import Backbone
from bara_pyro.core.checkpointing import Change
from bara_pyro.core.frozen_states import Tokens


class ChangeCache:
    """Changes of linear layers that are run twice: for all tokens, then for the last of them."""

    def __init__(self) -> None:
        self._changes: dict[nn.Module, Tensor] = {}

    def hook(self, change_of: Change, layer: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        """Return a layer's output with its change added, which was made when it was run before."""
        change = self._changes.pop(layer, None)
        if change is None:
            change = self._changes[layer] = change_of(layer, args, output)
        return output + change[:, -output.shape[1] :]


@torch.no_grad()
def adapted_before_attending(backbone: Backbone, adapted: Iterable[nn.Module]) -> frozenset[nn.Module] | None:
    """Return which of these linear layers the last decoder layer runs, if all of them before it attends.

    None where it runs others too, cannot be run for some tokens alone, or is not on a CPU: an accelerator has
    arithmetic to spare and waits for launches, of which a second run is some 94. Found by a look at four
    tokens.
    """
    if not backbone.last_apart or backbone.device.type != "cpu":
        return None
    last = set(backbone.states.layers[-1].modules())
    inside = frozenset(layer for layer in adapted if layer in last)
    seen: set[nn.Module] = set()
    with ExitStack() as stack:
        for layer in inside:
            stack.callback(layer.register_forward_hook(lambda layer, *_: seen.add(layer)).remove)
        ids = backbone.few_tokens()
        past = backbone.read_last(Tokens(ids, torch.ones_like(ids))) if inside else None
    return inside if not inside or (past is not None and seen == inside) else None

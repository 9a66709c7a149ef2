"""Run the last layer for the last tokens only: of earlier tokens it needs nothing but keys and values."""

from typing import Any

from torch import Tensor
from transformers import DynamicCache

from bara_pyro.fast.frozen_states import StopForward
from bara_pyro.fast.prefix import Prefix, not_run


class KeysAndValues(DynamicCache):
    """Cache that stores the keys and values of one layer and ends the forward pass there.

    Args:
        layer: index of the layer.

    Attributes:
        found: its keys and values, `P x heads x T x width`; None before the pass reaches the layer.
    """

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.found: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a layer; nothing precedes them in this forward pass.

        Raises:
            StopForward: it is the layer whose keys and values are wanted.
        """
        if layer_idx == self.layer:
            self.found = key_states, value_states
            raise StopForward
        return key_states, value_states

    def prefix(self, states: Tensor, mask: Tensor, width: int) -> Prefix | None:
        """Return the prefix from which the last tokens continue; None if the layer showed no keys and values.

        Args:
            states: the layer's input, `P x T x d`.
            mask: real tokens, bool, `P x T`.
            width: number of last tokens.
        """
        if self.found is None:
            return None
        keys, values = (part[..., :-width, :] for part in self.found)
        before = mask[:, :-width]
        layers = (*not_run(self.layer, before, keys.dtype), (keys, values))
        return Prefix(layers, before, below=self.layer, rest=states[:, -width:])

"""Run the last layer for the last tokens only: of earlier tokens it needs nothing but keys and values."""

from typing import Any

from torch import Tensor
from transformers import DynamicCache

from bara_pyro.fast.frozen_states import StopForward
from bara_pyro.fast.prefix import Prefix, not_run


class KeysAndValues(DynamicCache):
    """Cache that keeps one layer's keys and values, `P x heads x T x width`, and ends the pass there."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.found: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values, which begin here; raise `StopForward` at the layer wanted."""
        if layer_idx == self.layer:
            self.found = key_states, value_states
            raise StopForward
        return key_states, value_states

    def prefix(self, states: Tensor, mask: Tensor, width: int) -> Prefix | None:
        """Return the prefix from which the last `width` tokens continue; None without keys and values.

        `states` are the layer's input, `P x T x d`, and `mask` the real tokens, bool, `P x T`.
        """
        if self.found is None:
            return None
        keys, values = (part[..., :-width, :] for part in self.found)
        before = mask[:, :-width]
        layers = (*not_run(self.layer, before, keys.dtype), (keys, values))
        return Prefix(layers, before, below=self.layer, rest=states[:, -width:])

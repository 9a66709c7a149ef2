"""Cache of the hidden states below the lowest adapter, which do not change and run once per row."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bara_pyro.data.types import TokenRows

BUDGET = 2**30
"""Bytes of hidden states kept in memory by default; rows beyond are computed each time."""
# Attributes in which a PEFT layer stores the state of its adapters.
OF_PEFT = ("_disable_adapters", "_active_adapter")


class StopForward(Exception):
    """Ends a forward pass once the wanted states are available."""


@contextmanager
def replaced_forward(layer: nn.Module, forward: Callable) -> Iterator[None]:
    """Replace a module's `forward` while the block runs; its hooks stay active."""
    before = layer.__dict__.get("forward")  # accelerate may have set one
    layer.forward = forward
    try:
        yield
    finally:
        if before is None:
            del layer.forward
        else:
            layer.forward = before


def decoder_layers(lm: PreTrainedModel) -> tuple[str, Sequence[nn.Module]]:
    """Return the dotted path of a language model's list of layers, and the layers; "" and () if unknown."""
    lists = [module for module in lm.get_decoder().children() if isinstance(module, nn.ModuleList)]
    if len(lists) != 1:
        return "", ()
    return next(name for name, module in lm.named_modules() if module is lists[0]), tuple(lists[0])


class FrozenStates:
    """Cache of hidden states above the lowest decoder layers of a language model, by the tokens of a row.

    Args:
        lm: the language model.
        budget: largest number of bytes to keep in memory.

    Attributes:
        layers: the decoder layers; empty if they are not one plain list.
        path: dotted path of that list.
    """

    def __init__(self, lm: PreTrainedModel, budget: int = BUDGET) -> None:
        self.lm = lm
        self.budget = budget
        self.path, self.layers = decoder_layers(lm)
        self._kept: dict[str, Tensor] = {}
        self._weights = self._stamp()
        self._bytes = 0
        self._others = -1  # number of values that a layer returns beside the states; -1: it returns no tuple

    def depth(self, adapted: Iterable[str]) -> int:
        """Return the number of lowest layers without adapters, given the paths of the adapted modules."""
        depth = len(self.layers)
        for path in adapted:
            inside = bool(self.layers) and path.startswith(f"{self.path}.")
            depth = min(depth, int(path[len(self.path) + 1 :].split(".")[0]) if inside else 0)
        return depth

    def of(self, depth: int, tokens: TokenRows, inputs: Callable[[TokenRows], dict[str, Any]]) -> Tensor:
        """Return the states above the lowest `depth` layers, `B x T x d`, 0 on padding.

        `inputs` returns the inputs of the language model's body for given rows.
        """
        self._forget_where_weights_changed()
        lengths = tokens.attention_mask.sum(-1).tolist()
        keys = _keys(depth, tokens, lengths)
        by_row: list[Tensor] = []
        for row, key in enumerate(keys):
            states = self._kept.get(key)
            if states is None:
                # Each row runs in a batch of one, so that its rounding does not depend on other rows.
                states = self.run(depth, inputs(tokens.chosen(row, lengths[row])))[0]
                self._put(key, states)
            by_row.append(states)
        out = by_row[0].new_zeros(*tokens.input_ids.shape, by_row[0].shape[-1])
        for row, states in enumerate(by_row):
            out[row, -lengths[row] :] = states
        return out

    @torch.no_grad()
    def run(self, depth: int, inputs: dict[str, Any]) -> Tensor:
        """Run the lowest `depth` layers on a body's inputs; return their states, `B x T x d`."""
        with self.noting(depth, stop=True) as states:
            self.lm.base_model(**inputs)
        return states[0]

    @contextmanager
    def noting(self, depth: int, stop: bool = False) -> Iterator[list[Tensor]]:
        """Yield a list that receives the states above the lowest `depth` layers while the block runs.

        With `stop` the forward pass ends there. `StopForward` from anywhere in the block ends it without an
        error.
        """
        noted: list[Tensor] = []

        def note(module: nn.Module, args: object, output: Any) -> None:
            self._others = len(output) - 1 if isinstance(output, tuple) else -1
            noted.append(output if self._others < 0 else output[0])
            if stop:
                raise StopForward

        handle = self.layers[depth - 1].register_forward_hook(note)
        try:
            yield noted
        except StopForward:
            pass
        finally:
            handle.remove()

    @contextmanager
    def standing_in(self, depth: int, states: Tensor) -> Iterator[None]:
        """Give layer `depth` these states, `B x T x d`, while the block runs, and skip the layers below."""

        def stand_in(*_: object, **__: object) -> Tensor | tuple[Tensor | None, ...]:
            return states if self._others < 0 else (states, *[None] * self._others)

        with ExitStack() as stack:
            for layer in self.layers[:depth]:
                stack.enter_context(replaced_forward(layer, stand_in))
            yield

    def _stamp(self) -> int:
        """Return a hash that changes with the weights, except for writes through `.data`.

        It sees `load_state_dict`, optimisers, `to`, and the active PEFT adapters of other layers.
        """
        weights = tuple((id(p), p._version, p.dtype) for p in self.lm.parameters())
        others = (vars(m) for m in self.lm.modules() if "_disable_adapters" in vars(m))
        return hash((weights, *(tuple(str(layer.get(name)) for name in OF_PEFT) for layer in others)))

    def _forget_where_weights_changed(self) -> None:
        """Drop cached states if the weights have changed."""
        if (stamp := self._stamp()) != self._weights:
            self._kept, self._bytes, self._weights = {}, 0, stamp

    def _put(self, key: str, states: Tensor) -> None:
        size = states.numel() * states.element_size()
        if self._bytes + size <= self.budget:
            self._kept[key] = states.clone()  # a view would keep the whole batch alive
            self._bytes += size


def _keys(depth: int, tokens: TokenRows, lengths: Sequence[int]) -> list[str]:
    """Return each row's cache key: a hash of depth, tokens, segments and the dtype of matrix products."""
    device = tokens.input_ids.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    ids, segments = tokens.input_ids.cpu().numpy(), tokens.segments
    parts = None if segments is None else segments.cpu().numpy()
    keys = []
    for row, n in enumerate(lengths):
        digest = hashlib.blake2b(f"{depth}/{dtype}/{n}".encode(), digest_size=16)
        digest.update(ids[row, -n:].tobytes())
        if parts is not None:
            digest.update(parts[row, -n:].tobytes())
        keys.append(digest.hexdigest())
    return keys

"""Prefixes: keys and values of tokens that are read once, for many rows or draws."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from bara_pyro.data.types import Batch
from bara_pyro.fast.frozen_states import StopForward

LEAST = 32
"""Fewest tokens that the rows of a batch must have in common to be read once for all."""


@dataclass(frozen=True)
class Prefix:
    """Keys and values of every layer for P prefixes.

    Attributes:
        layers: keys and values of each layer, `P x heads x T x width`.
        mask: real tokens, bool, `P x T`.
        per_draw: whether there is one prefix per draw, for all rows; otherwise one per row, for all draws.
        below: number of lowest layers that are not run, neither here nor for the continuation.
        rest: output of these layers for the continuation, `B x T' x d` or `P x T' x d`; None if all layers
            run.
    """

    layers: tuple[tuple[Tensor, Tensor], ...]
    mask: Tensor
    per_draw: bool = False
    below: int = 0
    rest: Tensor | None = None

    def rows(self, count: int) -> Tensor:
        """Return the prefix index of each of `count` sequences, ordered by draw, then by row."""
        prefixes = torch.arange(len(self.mask), device=self.mask.device)
        times = count // len(prefixes)
        return prefixes.repeat_interleave(times) if self.per_draw else prefixes.repeat(times)

    def cache(self, rows: Tensor) -> DynamicCache:
        """Return a key-value cache for the given prefixes, for a continuation."""
        if len(rows) == len(self.mask):  # one prefix per sequence: no copies, forward or backward
            return DynamicCache(list(self.layers))
        return DynamicCache([(keys[rows], values[rows]) for keys, values in self.layers])


def not_run(layers: int, mask: Tensor, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Return keys and values for layers that were not run: they only have a number of tokens, `P x T`."""
    empty = mask.new_zeros(mask.shape, dtype=dtype)[:, None, :, None]
    return [(empty, empty)] * layers


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


def common_tokens(batch: Batch) -> int:
    """Return the length of the rows' common prefix, without the last token of the shortest row."""
    lengths = batch.attention_mask.sum(-1).tolist()
    shortest = min(lengths) - 1
    starts = [ids[len(ids) - n :][:shortest] for ids, n in zip(batch.input_ids, lengths, strict=True)]
    same = (torch.stack(starts) == starts[0]).all(0)
    return int(same.long().cumprod(0).sum())


def beginning(batch: Batch, tokens: int) -> Batch:
    """Return the first tokens of the first row, as a batch of one."""
    length = int(batch.attention_mask[0].sum())
    first = batch.input_ids[:1, batch.input_ids.shape[1] - length :][:, :tokens]
    return replace(
        batch,
        input_ids=first,
        attention_mask=torch.ones_like(first, dtype=torch.bool),
        labels=None,
        ids=batch.ids[:1],
    )


def after(batch: Batch, tokens: int | Tensor, past: Prefix) -> Batch:
    """Return the rows without their first `tokens` tokens (one number, or one per row), continuing `past`."""
    rest = batch.attention_mask & (batch.attention_mask.cumsum(-1) > tokens)
    width = int(rest.sum(-1).max())
    return replace(batch, input_ids=batch.input_ids[:, -width:], attention_mask=rest[:, -width:], past=past)

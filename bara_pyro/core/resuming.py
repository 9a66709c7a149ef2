"""Decide for a program and a batch which tokens are read once; `bara_pyro.fast` reads them.

It needs the program, so it is in `core`, above `bara_pyro.fast` and the language model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyro
import torch
from torch import Tensor

from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch, TokenRows
from bara_pyro.fast.prefix import LEAST, Prefix, after, beginning, common_tokens


def shared(model: AdaptedLM, batch: Batch) -> Batch:
    """Read the rows' common prefix once, if it is long enough; return the rows that continue from it."""
    tokens = length_shared(model, batch)
    if not tokens:
        return batch
    begin = beginning(batch, tokens)
    rest = after(batch, tokens, read_prefix(model, begin, lower(model, begin)))
    states = lower(model, batch)  # of the whole rows
    if states is None:
        return rest
    return replace(rest, past=replace(rest.past, rest=states[:, -rest.input_ids.shape[1] :]))


def length_shared(model: AdaptedLM, batch: Batch) -> int:
    """Return the length of the rows' common prefix if `shared` reads it once, otherwise 0."""
    if len(batch) == 1 or batch.segments is not None:
        return 0
    if not ("prefixes" in model.backbone.shortcuts and model.backbone.continues):
        return 0
    if not model.likelihood.looks_at_asked:  # it looks at all tokens
        return 0
    tokens = common_tokens(batch)
    if tokens < LEAST:
        return 0
    lengths = batch.attention_mask.sum(-1)
    uneven = int(lengths.min()) < int(lengths.max())  # shorter rows continue after padding
    if uneven and not model.backbone.goes_on_after_gaps(int(lengths.max())):
        return 0
    return tokens


def narrowed(model: AdaptedLM, batch: Batch) -> Batch:
    """Return only the tokens whose last hidden states the likelihood uses, continuing from the others.

    The result is exact: in the last layer, the other tokens matter only through their keys and values. Call
    it under the same latents as the forward pass that continues from it.
    """
    width = max(batch.asked)  # of the last tokens, to which the last layer is restricted
    plain = batch.segments is None and batch.past is None and model.likelihood.looks_at_asked
    apart = "last_layer" in model.backbone.shortcuts and model.backbone.last_apart
    adapted = apart and model.frozen_layers < len(model.backbone.states.layers)
    if not (plain and adapted and width < batch.input_ids.shape[1]):
        return batch
    below, states = model.frozen_layers, lower(model, batch)
    with _reading(model, batch) as copies:
        past = model.backbone.read_last(
            _tokens(batch), copies=copies, below=below, states=states, width=width
        )
    return batch if past is None else batch.last(width, past)


def read_prefix(model: AdaptedLM, batch: Batch, states: Tensor | None = None) -> Prefix:
    """Run the body on rows from which others will continue; return their keys and values.

    `states` are the output of the layers below the adapters, `B x T x d`; None to run those layers.
    """
    below = 0 if states is None else model.frozen_layers
    with _reading(model, batch) as copies:
        return model.backbone.read(_tokens(batch), copies=copies, below=below, states=states)


def lower(model: AdaptedLM, batch: Batch) -> Tensor | None:
    """Return the output of the layers below the adapters, `B x T x d`; None if there are no such layers."""
    return model.backbone.lower(_tokens(batch), model.frozen_layers)


@contextmanager
def _reading(model: AdaptedLM, batch: Batch) -> Iterator[int]:
    """Sample the global latents and attach the body's adapters, as a forward pass does."""
    model.backbone.check()
    indices = torch.arange(len(batch), device=batch.input_ids.device)
    with model.outside():
        latents = model.global_latents(batch)
        with (
            pyro.plate("data", model.num_data, subsample=indices, dim=-2),
            model.adapted(batch, latents) as draws,
        ):
            yield draws.numel()


def _tokens(batch: Batch) -> TokenRows:
    return TokenRows(batch.input_ids, batch.attention_mask)

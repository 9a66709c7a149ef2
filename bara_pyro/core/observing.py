"""Replace a program's likelihood for a while, and read last hidden states with and without its adapters."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from bara_pyro.core.handlers import PROGRAM
from bara_pyro.core.likelihood import AnswerLikelihood, Head, Likelihood
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.split import TextBatch
from bara_pyro.data.types import Batch


@contextmanager
def observing(model: AdaptedLM, likelihood: Likelihood) -> Iterator[None]:
    """Replace a program's likelihood while the block runs; other threads wait."""
    original = model.likelihood
    with PROGRAM:
        model.likelihood = likelihood
        try:
            yield
        finally:
            model.likelihood = original


@contextmanager
def last_states(model: AdaptedLM) -> Iterator[list[Tensor]]:
    """Record the last hidden states at the last token of every forward pass while the block runs.

    Each forward pass adds a tensor to the list, `(draws B) x d`: the input of the answer head, with the
    adapters below it in place.
    """
    noting = _Noting(model.likelihood)
    with observing(model, noting):
        yield noting.seen


@torch.no_grad()
def frozen_states(model: AdaptedLM, batch: Batch) -> Tensor:
    """Return the prompt's last hidden state in the language model without adapters, `B x d`, float32.

    If whole texts are scored, they follow the prompt, which does not attend to them.
    """
    model.backbone.check()
    ids, mask, segments = batch.input_ids, batch.attention_mask, batch.segments
    hidden = model.backbone.hidden(ids, mask, segments, below=model.frozen_layers)
    behind = batch.counts if isinstance(batch, TextBatch) else (1,) * len(hidden)
    rows = torch.arange(len(hidden), device=hidden.device)
    return hidden[rows, -torch.tensor(behind, device=hidden.device)].float()


class _Noting(AnswerLikelihood):
    """Wraps a likelihood and records its hidden states."""

    def __init__(self, likelihood: Likelihood) -> None:
        self.own = likelihood
        self.seen: list[Tensor] = []

    def observe(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        self.seen.append(hidden[..., -1, :].flatten(0, -2))
        return self.own.observe(hidden, batch, head)

    def predicted(self, values: Tensor) -> Tensor:
        return self.own.predicted(values)

    def observed(self, batch: Batch) -> bool:
        return self.own.observed(batch)

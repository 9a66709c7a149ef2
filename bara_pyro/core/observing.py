"""Context managers that replace a program's likelihood or record its last hidden states."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from bara_pyro.core.handlers import PROGRAM
from bara_pyro.core.likelihood import AnswerLikelihood, Head, Likelihood
from bara_pyro.core.program import AdaptedLM
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

    Yields:
        A list that each forward pass extends by one tensor, `(draws B) x d`: the input of the answer head,
        with the adapters below it in place.
    """
    noting = _Noting(model.likelihood)
    with observing(model, noting):
        yield noting.seen


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

"""Distribution of the next token at each position, without keeping all logits in memory."""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import ClassVar

import torch
from pyro.distributions import Categorical, TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bara_pyro.errors import DataError

BUDGET = 2**27
"""Bytes of logits held at once: about 220 positions with a vocabulary of 150,000 tokens."""


class NextToken(TorchDistribution):
    """One categorical distribution over the vocabulary at each of P positions.

    If the logits of all positions exceed `BUDGET`, they are computed for some positions at a time and again
    for the gradient; in between, one number per position is kept.

    Args:
        logits: function that returns the logits at a slice of positions, `... x p x V`, float32; it must not
            sample.
        shape: batch shape, `... x P`.
        vocabulary: size V of the vocabulary.
    """

    arg_constraints: ClassVar = {}
    support = constraints.nonnegative_integer

    def __init__(self, logits: Callable[[slice], Tensor], shape: torch.Size, vocabulary: int) -> None:
        super().__init__(shape, validate_args=False)
        self.logits = logits
        self.vocabulary = vocabulary
        self._each = 4 * vocabulary * prod(shape[:-1])
        self._known: tuple[Tensor, Tensor] | None = None

    def distributions(self, copies: int = 1) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of positions with the log-probabilities there, `draws x B x p x V`.

        `copies` tensors of that size fit `BUDGET`.
        """
        for piece in self._pieces(copies):
            log_probs = self.logits(piece).log_softmax(-1)
            yield piece, log_probs.reshape(-1, *log_probs.shape[-3:])

    def _pieces(self, copies: int = 1) -> list[slice]:
        """Return slices of positions so short that `copies` tensors of their logits fit `BUDGET`."""
        positions, step = self.batch_shape[-1], max(1, BUDGET // (copies * self._each))
        return [slice(i, min(i + step, positions)) for i in range(0, positions, step)]

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the tokens' log-probabilities, `... x P`; cached for the same tensor.

        A token outside the vocabulary raises a `DataError`, except on a GPU, where the check would wait.
        """
        if self._known is None or self._known[0] is not value:
            self._known = value, self._log_prob(value)
        return self._known[1]

    def _log_prob(self, value: Tensor) -> Tensor:
        value = value.expand(self.batch_shape)
        pieces = self._pieces()
        of_piece = partial(self._of, value)
        if len(pieces) > 1 and torch.is_grad_enabled():
            of_piece = partial(checkpoint, of_piece, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([of_piece(piece) for piece in pieces], dim=-1)

    def _of(self, value: Tensor, piece: slice) -> Tensor:
        chosen = value[..., piece]
        logits = self.logits(piece).flatten(0, -2)
        try:
            return -F.cross_entropy(logits, chosen.flatten(), reduction="none").view(chosen.shape)
        except IndexError as error:
            raise DataError(
                f"A reply contains token {int(value.max())}, but the language model has "
                f"{self.vocabulary} tokens: remove it from the text, or call resize_token_embeddings and "
                "train the model with it."
            ) from error

    def sample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> Tensor:
        """Return tokens, `sample_shape x ... x P`."""
        logits = self.logits(slice(None)).detach()
        return Categorical(logits=logits, validate_args=False).sample(torch.Size(sample_shape))

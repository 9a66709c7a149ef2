"""The next token's distribution at each position, without holding the logits of all of them."""

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
"""Bytes of logits that are held at once: of 150,000 words those of some two hundred positions."""


class NextToken(TorchDistribution):
    """One categorical over the vocabulary at each of P positions.

    Where the logits of all positions are more than `BUDGET`, they are made for some positions at a time, and
    made again for the gradient: what is kept between is one number a position.

    Args:
        logits: of some positions, `... x p x V`, float32; nothing is sampled by it.
        shape: `... x P`.
        vocabulary: their number V.
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
        """Yield some positions, and the logarithms of all draws' distributions there, `draws x B x p x V`.

        Args:
            copies: how many tensors of that size there is to be room for.
        """
        for piece in self._pieces(copies):
            log_probs = self.logits(piece).log_softmax(-1)
            yield piece, log_probs.reshape(-1, *log_probs.shape[-3:])

    def _pieces(self, copies: int = 1) -> list[slice]:
        """Return slices of positions, so many copies of whose logits fit `BUDGET`."""
        positions, step = self.batch_shape[-1], max(1, BUDGET // (copies * self._each))
        return [slice(i, min(i + step, positions)) for i in range(0, positions, step)]

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the tokens' log-probabilities, `... x P`; of the same tensor the same again.

        Raises:
            DataError: a token is none of the vocabulary (not looked at on a GPU, for which it would wait).
        """
        if self._known is None or self._known[0] is not value:
            self._known = value, self._log_prob(value)
        return self._known[1]

    def _check(self, value: Tensor) -> None:
        if value.device.type == "cpu" and value.numel() and int(value.max()) >= self.vocabulary:
            raise DataError(
                f"A reply holds the token {int(value.max())}, and the language model writes "
                f"{self.vocabulary} tokens: leave it out of the text, or call resize_token_embeddings and "
                "train the model with it."
            )

    def _log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        value = value.expand(self.batch_shape)
        pieces = self._pieces()
        of_piece = partial(self._of, value)
        if len(pieces) > 1 and torch.is_grad_enabled():
            of_piece = partial(checkpoint, of_piece, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([of_piece(piece) for piece in pieces], dim=-1)

    def _of(self, value: Tensor, piece: slice) -> Tensor:
        chosen = value[..., piece]
        logits = self.logits(piece).flatten(0, -2)
        return -F.cross_entropy(logits, chosen.flatten(), reduction="none").view(chosen.shape)

    def sample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> Tensor:
        """Return tokens, `sample_shape x ... x P`."""
        logits = self.logits(slice(None)).detach()
        return Categorical(logits=logits, validate_args=False).sample(torch.Size(sample_shape))

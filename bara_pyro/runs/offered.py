"""Rows that offer fewer answers than others: what is said of a row is said of those that it offers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bara_pyro.data import Example


def offered(examples: Sequence[Example], classes: int) -> Tensor:
    """Return which of the classes each row has as an answer, bool, `n x C`; all where it lists none."""
    return offered_of([len(example.options) for example in examples], classes)


def offered_of(counts: Sequence[int], classes: int) -> Tensor:
    """Return the same of the number of answers that each row offers; 0: all."""
    numbers = torch.tensor([count or classes for count in counts])
    return torch.arange(classes) < numbers[:, None]


def among_offered(log_probs: Tensor, counts: Sequence[int]) -> Tensor:
    """Return log-probabilities given that the answer is one that the row offers.

    Letters are tokens of the language model like others, and some of its probability falls on those that
    another row has and this one has not.

    Args:
        log_probs: `S x n x C`.
        counts: n numbers of answers, 0 for all; or none, where every row offers all.

    Returns:
        `S x n x C`, `-inf` where an answer is not offered; `log_probs` itself where nothing fell there.
    """
    if not counts:
        return log_probs
    missing = ~offered_of(counts, log_probs.shape[-1]).to(log_probs.device)
    if not (log_probs.masked_fill(~missing, -torch.inf) > -torch.inf).any():
        return log_probs
    return log_probs.masked_fill(missing, -torch.inf).log_softmax(-1)

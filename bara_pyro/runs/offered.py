"""Restrict predictions to the answers that a row offers, if rows offer different numbers of answers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bara_pyro.data import Example


def offered(examples: Sequence[Example], classes: int) -> Tensor:
    """Return which classes each row offers as answers, bool, `n x C`; all if it lists no options."""
    return offered_of([len(example.options) for example in examples], classes)


def offered_of(counts: Sequence[int], classes: int) -> Tensor:
    """Return which classes rows offer, from the number of answers of each row; 0: all."""
    numbers = torch.tensor([count or classes for count in counts])
    return torch.arange(classes) < numbers[:, None]


def among_offered(log_probs: Tensor, counts: Sequence[int]) -> Tensor:
    """Return log-probabilities conditional on the answers that each row offers.

    The language model gives some probability to letters that other rows use and this row does not.

    Args:
        log_probs: `S x n x C`.
        counts: the number of answers of each of the n rows, 0 for all; empty if every row offers all.

    Returns:
        `S x n x C`, `-inf` for answers that are not offered; `log_probs` itself if they had no probability.
    """
    if not counts:
        return log_probs
    missing = ~offered_of(counts, log_probs.shape[-1]).to(log_probs.device)
    if not (log_probs.masked_fill(~missing, -torch.inf) > -torch.inf).any():
        return log_probs
    return log_probs.masked_fill(missing, -torch.inf).log_softmax(-1)

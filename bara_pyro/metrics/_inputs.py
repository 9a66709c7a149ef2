"""Checks that every score runs on its inputs: shapes, types, and whether they are log-probabilities."""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from bara_pyro.errors import ConfigError, DataError

Numbers: TypeAlias = Tensor | Sequence["float | Numbers"]
"""A tensor, or nested lists that form one."""

NORMALISATION_TOLERANCE = 1e-3
"""The largest accepted error in the sum of a row of probabilities; a float32 softmax is off by about 1e-6."""

DECIMALS = 12
"""Decimals kept in a confidence before it is binned or ranked (see `top_label`)."""


def as_float64(values: Numbers, name: str, dims: int) -> Tensor:
    """Return `values` as a detached float64 tensor on the CPU (some accelerators lack float64).

    If it is ragged or empty, or does not have `dims` dimensions, this raises a `DataError`.
    """
    try:
        # Move to the CPU first: a conversion to float64 would otherwise run on the device, which may lack it.
        tensor = values.detach().cpu() if isinstance(values, Tensor) else values
        tensor = torch.as_tensor(tensor, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name} cannot be read as one tensor ({error}): give every row the same length."
        ) from error
    if tensor.dim() != dims:
        raise DataError(f"{name} has shape {tuple(tensor.shape)}: give a tensor with {dims} dimension(s).")
    if tensor.numel() == 0:
        raise DataError(f"{name} is empty (shape {tuple(tensor.shape)}): there is nothing to score.")
    return tensor


def check_log_probs(log_probs: Numbers, name: str = "log_probs", dims: int = 2) -> Tensor:
    """Return `log_probs` (`... x C`, nats) in float64.

    A `DataError` says that they are empty or ragged or contain NaN, or that the probabilities of a row do not
    sum to 1 (logits, for example).
    """
    checked = as_float64(log_probs, name, dims)
    if torch.isnan(checked).any():
        row = int(torch.isnan(checked).any(-1).flatten().nonzero()[0])
        raise DataError(f"{name} is NaN in row {row}: the prediction failed there.")
    totals = checked.exp().sum(-1).flatten()
    wrong = ((totals - 1).abs() > NORMALISATION_TOLERANCE).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"The probabilities in row {row} of {name} sum to {totals[row]:.4g}, not 1: "
            "pass log-probabilities (log_softmax), not logits."
        )
    return checked


def check_labels(labels: Tensor | Sequence[int], rows: int, classes: int) -> Tensor:
    """Return `labels` (`n`) as a long tensor on the CPU.

    A `DataError` says that there are not `rows` of them, or that one is not in `0..classes - 1`.
    """
    values = as_float64(labels, "labels", 1)
    if len(values) != rows:
        raise DataError(
            f"There are {rows} rows of log_probs and {len(values)} labels: give one label for each row."
        )
    checked = values.long()
    wrong = ((checked != values) | (checked < 0) | (checked >= classes)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"Label {values[row]:g} in row {row} is not a class index in 0..{classes - 1}: "
            "score only rows with a known answer."
        )
    return checked


def check_predictions(log_probs: Numbers, labels: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return checked `log_probs` (float64, `n x C`) and `labels` (long, `n`)."""
    checked = check_log_probs(log_probs)
    return checked, check_labels(labels, *checked.shape)


def check_bins(n_bins: int) -> int:
    """Return `n_bins`, or raise `ConfigError` if it is not a positive integer."""
    if not isinstance(n_bins, int) or n_bins < 1:
        raise ConfigError(f"n_bins is {n_bins!r}: give a positive integer.")
    return n_bins


def top_label(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probability (0..1) and the index of the most probable class of each row.

    The first of equally probable classes wins. Confidences are rounded to `DECIMALS` decimals. Two rows that
    both predict 1/3 can differ in the last bit after exp and logsumexp, and without rounding a bin edge at
    1/3 would put them into different bins.
    """
    best, predicted = log_probs.max(dim=1)
    return torch.round(best.exp().clamp(max=1.0), decimals=DECIMALS), predicted


def correctness(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the confidence and the correctness (0 or 1) of the top label, both float64, `n`."""
    confidence, predicted = top_label(log_probs)
    return confidence, predicted.eq(labels).double()


def mean_over_ties(confidence: Tensor, outcome: Tensor) -> Tensor:
    """Return `outcome` with every row replaced by the mean over rows of the same confidence.

    A score that sorts by confidence then does not depend on the order of tied rows: every prefix of the
    sorted rows has its expected value under random tie-breaking.
    """
    levels, group = torch.unique(confidence, return_inverse=True)
    totals = torch.zeros(len(levels), dtype=outcome.dtype).scatter_add_(0, group, outcome)
    return (totals / torch.bincount(group, minlength=len(levels)))[group]

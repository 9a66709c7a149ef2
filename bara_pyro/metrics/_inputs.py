"""What every score checks before it computes: shapes, types and that the numbers are log-probabilities."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bara_pyro.errors import ConfigError, DataError

Numbers: TypeAlias = Tensor | Sequence["float | Numbers"]
"""A tensor, or the same as nested lists of equal lengths."""

NORMALISATION_TOLERANCE = 1e-3
"""How far a row of probabilities may be from summing to 1; float32 softmax is off by about 1e-6."""

DECIMALS = 12
"""Confidences are rounded to so many decimals before they are binned or ranked (see `top_label`)."""


def as_float64(values: Numbers, name: str, dims: int) -> Tensor:
    """Return `values` as a detached float64 CPU tensor (not every accelerator has float64).

    `DataError`: it is ragged, empty or does not have `dims` dimensions.
    """
    try:
        # Without a dtype torch reads Python floats as float32; with one it would convert on the device.
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


def as_finite_array(values: ArrayLike, name: str, axes: Sequence[str]) -> NDArray[np.float64]:
    """Return `values` as a float64 array whose dimensions are `axes`.

    `DataError`: it is ragged, empty, of other dimensions, or a value is not finite.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name} cannot be read as one array ({error}): give a full array.") from error
    if array.ndim != len(axes):
        raise DataError(f"{name} has shape {array.shape}: give an array of {' x '.join(axes)}.")
    if array.size == 0:
        raise DataError(f"{name} is empty (shape {array.shape}): there is nothing to score.")
    if not np.isfinite(array).all():
        place = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise DataError(f"{name}{list(place)} is {array[place]}: give finite numbers only.")
    return array


def check_log_probs(log_probs: Numbers, name: str = "log_probs", dims: int = 2) -> Tensor:
    """Return `log_probs` (`... x C`, nats) in float64.

    `DataError`: it is empty or ragged, holds NaN, or its rows do not sum to 1 (logits, for example).
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
    """Return `labels` (`n`) as a long CPU tensor.

    `DataError`: there is not one label a row, or a label is not a class index in `0..classes - 1`.
    """
    given = as_float64(labels, "labels", 1)
    if len(given) != rows:
        raise DataError(f"There are {rows} rows of log_probs and {len(given)} labels: give one label a row.")
    checked = given.long()
    wrong = ((checked != given) | (checked < 0) | (checked >= classes)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"Label {given[row]:g} of row {row} is not a class index in 0..{classes - 1}: "
            "score only rows whose answer is known."
        )
    return checked


def check_predictions(log_probs: Numbers, labels: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return checked `log_probs` (float64, `n x C`) and `labels` (long, `n`)."""
    checked = check_log_probs(log_probs)
    return checked, check_labels(labels, *checked.shape)


def check_bins(n_bins: int) -> int:
    """Return `n_bins`; `ConfigError`: it is not a positive integer."""
    if not isinstance(n_bins, int) or n_bins < 1:
        raise ConfigError(f"n_bins is {n_bins!r}: give a positive integer.")
    return n_bins


def top_label(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the confidence (probability in 0..1) and the index of the most probable class of each row.

    Among equal probabilities the first class wins. Confidences are rounded to `DECIMALS` decimals: rows
    that predict the same 1/3 differ in the last bit after exp and logsumexp, and a bin edge at 1/3 would
    then part them at random.
    """
    best, predicted = log_probs.max(dim=1)
    return torch.round(best.exp().clamp(max=1.0), decimals=DECIMALS), predicted


def correctness(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return confidence and 0/1 correctness (both float64, `n`) of the top label."""
    confidence, predicted = top_label(log_probs)
    return confidence, predicted.eq(labels).double()


def mean_over_ties(confidence: Tensor, outcome: Tensor) -> Tensor:
    """Return `outcome` with every row replaced by the mean over the rows of the same confidence.

    Whatever sorts by confidence then no longer depends on the order in which tied rows were given: each
    prefix of the sorted rows holds its expected value over random tie-breaking.
    """
    levels, group = torch.unique(confidence, return_inverse=True)
    totals = torch.zeros(len(levels), dtype=outcome.dtype).scatter_add_(0, group, outcome)
    return (totals / torch.bincount(group, minlength=len(levels)))[group]

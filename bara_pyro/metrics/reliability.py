"""The numbers behind a reliability diagram: accuracy and confidence in bins of equal width."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bara_pyro.metrics._inputs import DECIMALS, Numbers, check_bins, check_predictions, correctness

DEFAULT_BINS = 15


@dataclass(frozen=True)
class ReliabilityBins:
    """Rows grouped by the confidence of their top label.

    Bins include their left edge and exclude their right edge; the last bin includes both.

    Attributes:
        edges: float64, `n_bins + 1`, from 0 to 1.
        counts: long, `n_bins`: number of rows in each bin.
        accuracy: float64, `n_bins`: fraction of right answers, 0..1; NaN in an empty bin.
        confidence: float64, `n_bins`: mean probability of the top label, 0..1; NaN in an empty bin.
    """

    edges: Tensor
    counts: Tensor
    accuracy: Tensor
    confidence: Tensor

    @property
    def ece(self) -> float:
        """The expected calibration error (percent): mean |accuracy - confidence|, weighted by counts."""
        gaps = (self.accuracy - self.confidence).abs().nan_to_num(nan=0.0)
        return 100.0 * float((gaps * self.counts).sum() / self.counts.sum())


def bin_edges(n_bins: int) -> Tensor:
    """Return the `n_bins + 1` edges of equal-width bins on 0..1 (float64)."""
    return torch.linspace(0, 1, check_bins(n_bins) + 1, dtype=torch.float64)


def on_edges(confidence: Tensor, n_bins: int) -> Tensor:
    """Return the confidences, with those that differ from a bin edge only by rounding moved onto the edge."""
    edge = bin_edges(n_bins)[(confidence * n_bins).round().long().clamp(0, n_bins)]
    return torch.where((confidence - edge).abs() < 10.0**-DECIMALS, edge, confidence)


def bin_index(confidence: Tensor, n_bins: int) -> Tensor:
    """Return the bin of each confidence (long, `n`); a confidence of 1 belongs to the last bin."""
    placed = torch.bucketize(on_edges(confidence, n_bins), bin_edges(n_bins), right=True)
    return (placed - 1).clamp(0, n_bins - 1)


def bin_means(confidence: Tensor, outcome: Tensor, n_bins: int) -> ReliabilityBins:
    """Group rows by confidence (float64, `n`); average confidence and `outcome` (float64, `n`) per bin."""
    index = bin_index(confidence, n_bins)
    counts = torch.bincount(index, minlength=n_bins)
    zeros = torch.zeros(n_bins, dtype=torch.float64)
    return ReliabilityBins(
        edges=bin_edges(n_bins),
        counts=counts,
        accuracy=zeros.scatter_add(0, index, outcome) / counts,
        confidence=zeros.scatter_add(0, index, confidence) / counts,
    )


def reliability_bins(
    log_probs: Numbers, labels: Tensor | Sequence[int], n_bins: int = DEFAULT_BINS
) -> ReliabilityBins:
    """Return counts, accuracy and confidence in bins of equal width (Guo et al. 2017, figure 1).

    Arguments and errors are those of `metrics.ece`. The `ece` of the result equals `metrics.ece`.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import reliability_bins
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]]).log()
        >>> bins = reliability_bins(log_probs, [0, 1, 0], n_bins=4)  # edges 0, 0.25, 0.5, 0.75 and 1
        >>> bins.counts.tolist(), bins.accuracy.tolist()[2:], bins.confidence.round(decimals=4).tolist()[2:]
        ([0, 0, 1, 2], [1.0, 0.5], [0.6, 0.85])
        >>> round(bins.ece, 4)  # (1 * 40 + 2 * 35) / 3
        36.6667
    """
    return bin_means(*correctness(*check_predictions(log_probs, labels)), n_bins)

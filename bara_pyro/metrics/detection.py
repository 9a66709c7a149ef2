"""Rows from elsewhere: how unusual the uncertainty of a row is among rows that are known to be at home.

Each of n calibration rows, which nothing was fitted to, has a score that is higher the less is known of it
(entropy, mutual information, distance). A new row has the p-value

    p = (1 + number of calibration rows whose score is at least as high) / (n + 1)

Where it is exchangeable with the calibration rows, its rank among all n + 1 is uniform, so that with no two
scores equal P(p <= alpha) is l / (n + 1) exactly, l = floor((n + 1) alpha), and with equal ones less (Bates,
Candes, Lei, Romano and Sesia 2023). P is over the calibration rows, too: with these given, the rate of false
alarms has the distribution Beta(l, n + 1 - l). How many foreign rows are found is another question: see
`metrics.ood_auroc`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bara_pyro.errors import DataError
from bara_pyro.metrics._inputs import as_float64
from bara_pyro.metrics.conformal import allowed


@dataclass(frozen=True)
class Detector:
    """Which rows are from elsewhere.

    Attributes:
        alpha: the share of rows at home that may be called foreign.
        scores: float64, `n`, rising: those of the calibration rows.
    """

    alpha: float
    scores: Tensor

    def p_values(self, scores: Tensor | Sequence[float]) -> Tensor:
        """Return the p-value of each row, float64, `m`, from its score, `m`."""
        return (1 + self._as_high(scores)).double() / (len(self.scores) + 1)

    def __call__(self, scores: Tensor | Sequence[float]) -> Tensor:
        """Return which rows are from elsewhere, `p <= alpha`, bool, `m`."""
        return 1 + self._as_high(scores) <= allowed(len(self.scores), self.alpha)

    def _as_high(self, scores: Tensor | Sequence[float]) -> Tensor:
        """Return how many calibration rows have a score at least as high, long, `m`."""
        return len(self.scores) - torch.searchsorted(self.scores, _checked(scores), right=False)


def detector(scores: Tensor | Sequence[float], *, alpha: float) -> Detector:
    """Return what calls a row that is at home foreign with probability `alpha` at most.

    Args:
        scores: `n`, of calibration rows, which nothing was fitted to; higher the less is known of a row.
        alpha: between 0 and 1, at least `1 / (n + 1)`.

    Raises:
        ConfigError: `alpha` is out of range.
        DataError: there are no scores, or one is NaN.

    Examples:
        >>> from bara_pyro.metrics import detector
        >>> foreign = detector([0.1, 0.3, 0.2], alpha=0.25)
        >>> foreign.p_values([0.25, 0.4]).tolist()  # (1 + 1) / 4 and (1 + 0) / 4
        [0.5, 0.25]
        >>> foreign([0.25, 0.4]).tolist()
        [False, True]
    """
    known = _checked(scores)
    allowed(len(known), alpha)
    return Detector(alpha, known.sort().values)


def _checked(scores: Tensor | Sequence[float]) -> Tensor:
    found = as_float64(scores, "scores", 1)
    if found.isnan().any():
        row = int(found.isnan().nonzero()[0])
        raise DataError(f"The score of row {row} is NaN: the prediction failed there.")
    return found

"""Out-of-distribution detection with a bounded rate of false alarms (conformal p-values).

The n calibration rows must be in-distribution and held out from training and tuning. Each has a score that is
higher the more uncertain the model is (entropy, mutual information, distance). The p-value of a new row is

    p = (1 + number of calibration rows whose score is at least as high) / (n + 1)

If the new row is exchangeable with the calibration rows, its rank among all n + 1 is uniform. Then

    P(p <= alpha) = l / (n + 1),     l = floor((n + 1) alpha)

if no two scores are equal, and less with ties (Bates, Candes, Lei, Romano and Sesia 2023). P is a probability
over calibration rows and the new row. Given the calibration rows, the rate of false alarms has the
distribution Beta(l, n + 1 - l). For the share of out-of-distribution rows that a score detects, see
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
    """A rule that decides which rows are out-of-distribution.

    Attributes:
        alpha: the largest rate of false alarms on in-distribution rows, 0..1.
        scores: float64, `n`: the scores of the calibration rows, in increasing order.
    """

    alpha: float
    scores: Tensor

    def p_values(self, scores: Tensor | Sequence[float]) -> Tensor:
        """Return the p-values (float64, `m`) of rows from their scores (`m`); small is unusual."""
        return (1 + self._as_high(scores)).double() / (len(self.scores) + 1)

    def __call__(self, scores: Tensor | Sequence[float]) -> Tensor:
        """Return which rows are out-of-distribution (`p <= alpha`; bool, `m`) from their scores (`m`)."""
        return 1 + self._as_high(scores) <= allowed(len(self.scores), self.alpha)

    def _as_high(self, scores: Tensor | Sequence[float]) -> Tensor:
        """Return the number of calibration rows with a score at least as high (long, `m`)."""
        return len(self.scores) - torch.searchsorted(self.scores, _checked(scores), right=False)


def detector(scores: Tensor | Sequence[float], *, alpha: float) -> Detector:
    """Return a detector that flags an in-distribution row with probability `alpha` at most.

    Args:
        scores: `n`, uncertainty of held-out in-distribution rows; higher is more uncertain.
        alpha: the largest rate of false alarms; at least `1 / (n + 1)`, below 1.

    Raises:
        ConfigError: `alpha` is out of range.
        DataError: there are no scores, or one is NaN.

    Examples:
        >>> from bara_pyro.metrics import detector
        >>> unusual = detector([0.1, 0.3, 0.2], alpha=0.25)
        >>> unusual.p_values([0.25, 0.4]).tolist()  # (1 + 1) / 4 and (1 + 0) / 4
        [0.5, 0.25]
        >>> unusual([0.25, 0.4]).tolist()
        [False, True]
    """
    known = _checked(scores)
    allowed(len(known), alpha)
    return Detector(alpha, known.sort().values)


def _checked(scores: Tensor | Sequence[float]) -> Tensor:
    values = as_float64(scores, "scores", 1)
    if values.isnan().any():
        row = int(values.isnan().nonzero()[0])
        raise DataError(f"The score of row {row} is NaN: the prediction failed there.")
    return values

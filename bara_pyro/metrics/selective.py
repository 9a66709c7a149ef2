"""Selective prediction: the error rate when the least certain rows are left unanswered.

Arguments and errors are those of `metrics.scores`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bara_pyro.metrics._inputs import Numbers, check_predictions, correctness, mean_over_ties


def risk_coverage(log_probs: Numbers, labels: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the risk-coverage curve of the top label's confidence.

    The k most confident rows are answered, for k = 1..n. Coverage is the share of rows that are answered,
    risk the error rate among them; lower curves are better. Rows of equal confidence count by their mean
    error, so the curve does not depend on the order of the rows.

    Source: El-Yaniv and Wiener 2010, JMLR 11, 1605-1641.

    Returns:
        Coverage (percent, `n`, rising to 100) and risk (percent, `n`), both float64.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import risk_coverage
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]).log()
        >>> covered, risk = risk_coverage(log_probs, [0, 0, 1, 0])  # the third is wrong
        >>> covered.tolist(), risk.round(decimals=2).tolist()
        ([25.0, 50.0, 75.0, 100.0], [0.0, 0.0, 33.33, 25.0])
    """
    confidence, correct = correctness(*check_predictions(log_probs, labels))
    error = mean_over_ties(confidence, 1.0 - correct)[confidence.argsort(descending=True)]
    answered = torch.arange(1, len(error) + 1, dtype=torch.float64)
    return 100.0 * answered / len(error), 100.0 * error.cumsum(0) / answered


def aurc(log_probs: Numbers, labels: Tensor | Sequence[int]) -> float:
    """Return the area under the risk-coverage curve (AURC) in percent; 0 is best.

        1 / n * sum_k risk(k / n)

    where risk(k / n) is the error rate among the k most confident rows (see `risk_coverage`).

    Source: Geifman, Uziel and El-Yaniv 2019 (arXiv 1805.08206).

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import aurc
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]).log()
        >>> round(aurc(log_probs, [0, 0, 1, 0]), 4)  # the mean of 0, 0, 100 / 3 and 25
        14.5833
    """
    return float(risk_coverage(log_probs, labels)[1].mean())

"""Selective prediction: how the error falls when the least certain rows are left unanswered.

Arguments and errors are those of `metrics.scores`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bara_pyro.metrics._inputs import Numbers, check_predictions, correctness, mean_over_ties


def risk_coverage(log_probs: Numbers, labels: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the risk-coverage curve (El-Yaniv and Wiener 2010) of the top label's confidence.

    Rows of equal confidence are taken in random order, in expectation, so that the curve does not depend
    on the order of the rows.

    Returns:
        Coverage (percent, `n`, rising to 100) and risk (percent of the covered rows that are wrong, `n`).
    """
    confidence, correct = correctness(*check_predictions(log_probs, labels))
    error = mean_over_ties(confidence, 1.0 - correct)[confidence.argsort(descending=True)]
    answered = torch.arange(1, len(error) + 1, dtype=torch.float64)
    return 100.0 * answered / len(error), 100.0 * error.cumsum(0) / answered


def aurc(log_probs: Numbers, labels: Tensor | Sequence[int]) -> float:
    """Return the area under the risk-coverage curve in percent: 0 is perfect, lower is better.

    It is the mean of the risk over the coverages 1/n, 2/n, ..., 1 (Geifman and El-Yaniv 2017).
    """
    return float(risk_coverage(log_probs, labels)[1].mean())

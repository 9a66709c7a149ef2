"""Selective prediction: how the error falls when the least certain rows are left unanswered.

Arguments and errors are those of `metrics.scores`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bara_pyro.errors import DataError
from bara_pyro.metrics._inputs import Numbers, check_predictions, correctness, mean_over_ties
from bara_pyro.metrics.uncertainty import ood_auroc


def risk_coverage(log_probs: Numbers, labels: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the risk-coverage curve (El-Yaniv and Wiener 2010) of the top label's confidence.

    Rows of equal confidence are taken in random order, in expectation, so that the curve does not depend
    on the order of the rows.

    Returns:
        Coverage (percent, `n`, rising to 100) and risk (percent of the covered rows that are wrong, `n`).

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
    """Return the area under the risk-coverage curve in percent: 0 is perfect, lower is better.

    It is the mean of the risk over the coverages 1/n, 2/n, ..., 1 (Geifman and El-Yaniv 2017).

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import aurc
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]).log()
        >>> round(aurc(log_probs, [0, 0, 1, 0]), 4)  # the mean of 0, 0, 100 / 3 and 25
        14.5833
    """
    return float(risk_coverage(log_probs, labels)[1].mean())


def error_auroc(log_probs: Numbers, labels: Tensor | Sequence[int]) -> float:
    """Return how well low confidence tells wrong answers from right ones (AUROC, percent).

    It is the probability that a wrong answer has less confidence in its top label than a right one, ties
    counting half (Hendrycks and Gimpel 2017): 50 is chance, 100 perfect.

    Raises:
        DataError: as of `metrics.scores`, or all answers are right, or all wrong: there is nothing to tell.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import error_auroc
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]).log()
        >>> round(error_auroc(log_probs, [0, 0, 1, 0]), 4)  # 2 of 3 pairs are in order
        66.6667
    """
    confidence, correct = correctness(*check_predictions(log_probs, labels))
    right = correct.bool()
    if right.all() or not right.any():
        all_of_them = "right" if right[0] else "wrong"
        raise DataError(f"All {len(right)} answers are {all_of_them}: there is nothing to tell apart.")
    return ood_auroc(-confidence[right], -confidence[~right])

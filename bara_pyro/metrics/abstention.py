"""Selective prediction: the error rate when the least certain rows are left unanswered, and abstention.

Abstention has a guarantee: a confidence threshold above which the error rate is at most a chosen risk.

A row is answered if the probability of its most probable answer is above T. The threshold T is chosen on n
calibration rows. They must be held out from training and tuning, and independent draws from the distribution
of new rows; use one row from each cluster (`bara_pyro.data.clusters.one_of_each`). For any model and any
distribution of rows,

    P( P(wrong | answered) > risk ) <= delta

where the outer probability is over calibration rows and the inner one over a new row.

Candidates for T are the confidences T_k of the (k + 1)-th most confident row. Given T_k, the rows above it
are independent draws of new rows above it. Of m such rows Binomial(m, P(wrong | above T_k)) are wrong, and a
Clopper-Pearson bound at level d fails with probability d at most.

The ranks k are fixed in advance: `SHARES` equal steps of n, without those too small to pass even with no
error. Each bound uses d = delta / (number of ranks), so all bounds hold together with probability 1 - delta.
Among the candidates whose bound is at most `risk`, T is the one that answers the most rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.special import betaincinv
from torch import Tensor

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics._inputs import (
    Numbers,
    check_log_probs,
    check_predictions,
    correctness,
    mean_over_ties,
    top_label,
)


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


SHARES = 10


@dataclass(frozen=True)
class Abstention:
    """A rule that decides which rows to answer.

    Attributes:
        risk: the largest error rate among answered rows, 0..1.
        delta: the largest probability that the guarantee fails, 0..1.
        threshold: rows with a confidence above it are answered; 0 if all are.
        rows: the number n of calibration rows.
        answered: number of calibration rows above the threshold.
        wrong: number of wrong answers among those.
        bound: upper bound on the error rate among answered new rows, at most `risk`.
    """

    risk: float
    delta: float
    threshold: float
    rows: int
    answered: int
    wrong: int
    bound: float

    def __call__(self, log_probs: Numbers) -> Tensor:
        """Return which rows to answer (bool, `n`) from log-probabilities (`n x C`)."""
        return top_label(check_log_probs(log_probs))[0] > self.threshold


def abstention(
    log_probs: Numbers, labels: Tensor | Sequence[int], *, risk: float, delta: float = 0.05
) -> Abstention:
    """Return the rule that answers the most rows with an error rate of at most `risk`.

    Args:
        log_probs: `n x C`, natural log of the probabilities of calibration rows, which must be held out.
        labels: `n`, the right answers of the calibration rows.
        risk: the largest error rate among answered new rows, between 0 and 1.
        delta: the largest probability, over calibration rows, that the error rate exceeds `risk`; between 0
            and 1.

    Raises:
        ConfigError: `risk` or `delta` is out of range.
        DataError: no threshold guarantees this risk, or the inputs fail the checks of `metrics.scores`.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import abstention
        >>> sure, unsure = [0.95, 0.05], [0.55, 0.45]
        >>> log_probs = torch.tensor([sure] * 50 + [unsure] * 50).log()
        >>> answer = abstention(log_probs, [0] * 50 + [0, 1] * 25, risk=0.2)
        >>> answer.answered, answer.wrong, answer.bound <= 0.2
        (50, 0, True)
        >>> answer(torch.tensor([sure, unsure]).log()).tolist()
        [True, False]
    """
    predicted, answers = check_predictions(log_probs, labels)
    confidence, correct = correctness(predicted, answers)
    falling, rows = confidence.sort(descending=True).values.tolist(), len(answers)
    points, tried = [], ranks(rows, risk, delta)
    for rank in tried:
        threshold = falling[rank] if rank < rows else 0.0
        above = confidence > threshold
        answered, wrong = int(above.sum()), int((above & ~correct.bool()).sum())
        bound = upper_bound(wrong, answered, delta / len(tried))
        points.append(Abstention(risk, delta, threshold, rows, answered, wrong, bound))
    if passing := [one for one in points if one.bound <= risk]:
        return max(passing, key=lambda one: one.answered)
    best = min(points, key=lambda one: one.bound)
    raise DataError(
        f"No threshold guarantees a risk of {risk:g} (delta {delta:g}): {best.wrong} of the {best.answered} "
        f"most confident of {rows} rows are wrong. Give a risk of at least {best.bound:.3g}, or more rows."
    )


def ranks(rows: int, risk: float, delta: float) -> list[int]:
    """Return the numbers of most confident rows to test, without those that could never pass.

    If `risk` or `delta` is out of range, this raises a `ConfigError`; if no number could pass, a `DataError`.
    """
    for name, value in (("risk", risk), ("delta", delta)):
        if not 0.0 < value < 1.0:
            raise ConfigError(f"{name} is {value}: give a number between 0 and 1, 0.05 for example.")
    counts = sorted({math.ceil(rows * share / SHARES) for share in range(1, SHARES + 1)})
    while counts and upper_bound(0, counts[0], delta / len(counts)) > risk:
        del counts[0]
    if not counts:
        least = math.ceil(math.log(delta) / math.log1p(-risk))
        raise DataError(
            f"{rows} calibration rows are too few to guarantee an error rate of {risk:g} (delta {delta:g}): "
            f"give {least:,} rows or more."
        )
    return counts


def upper_bound(wrong: int, rows: int, level: float) -> float:
    """Return an upper bound on an error rate that fails with probability `level` (Clopper and Pearson 1934).

    >>> round(upper_bound(0, 29, 0.05), 4)
    0.0981
    """
    return 1.0 if wrong == rows else float(betaincinv(wrong + 1, rows - wrong, 1 - level))

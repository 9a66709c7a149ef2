"""Answering only where the error rate is surely low: a threshold on confidence with a stated risk.

n calibration rows, drawn independently as the rows to come are (of clusters of rows one each,
`bara_pyro.data.clusters.one_of_each`), and which nothing was fitted to. A row is answered where the
probability of its most probable answer lies above T. Promised is that, whatever the predictions and the
distribution of the rows,

    P( P(wrong | answered) > risk ) <= delta,

the outer probability over the calibration rows, which T is chosen by, the inner one over a row to come.

Of the n rows in the order of their confidence, T_k is the confidence of the (k + 1)-th. Given T_k, the rows
above it are independent draws of the rows above it to come, so that the number of wrong ones among m of them
is Binomial(m, P(wrong | above T_k)), and a Clopper-Pearson bound at level d fails with probability d at most.
The ranks k are fixed in advance: `SHARES` equal steps of n, but for those that are too few to pass even
without an error. Each bound has d = delta / (number of ranks), so that all of them hold together with
probability 1 - delta, and any may be chosen: of those at most `risk` the one that answers the most rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import betaincinv
from torch import Tensor

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics._inputs import Numbers, check_log_probs, check_predictions, correctness, top_label

SHARES = 10


@dataclass(frozen=True)
class Abstention:
    """Which rows are answered.

    Attributes:
        risk: the error rate that is promised.
        delta: the probability that the promise fails.
        threshold: rows whose confidence lies above it are answered; 0 where all are.
        rows: the number n of calibration rows.
        answered: how many of them lie above the threshold.
        wrong: how many of these are answered wrongly.
        bound: on the error rate of the answered rows to come, at most `risk`.
    """

    risk: float
    delta: float
    threshold: float
    rows: int
    answered: int
    wrong: int
    bound: float

    def __call__(self, log_probs: Numbers) -> Tensor:
        """Return which rows are answered, bool, `n`, from log-probabilities, `n x C`."""
        return top_label(check_log_probs(log_probs))[0] > self.threshold


def abstention(
    log_probs: Numbers, labels: Tensor | Sequence[int], *, risk: float, delta: float = 0.05
) -> Abstention:
    """Return the threshold that answers the most rows at a stated risk.

    Args:
        log_probs: `n x C`, natural log of the probabilities of calibration rows, which nothing was fitted to.
        labels: `n`, their right answers.
        risk: the error rate that the answered rows to come may have, between 0 and 1.
        delta: the probability, over calibration rows, that theirs is larger, between 0 and 1.

    Raises:
        ConfigError: `risk` or `delta` is out of range.
        DataError: no threshold can be trusted at this risk; otherwise as of `metrics.scores`.

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
    found, tried = [], ranks(rows, risk, delta)
    for rank in tried:
        threshold = falling[rank] if rank < rows else 0.0
        above = confidence > threshold
        answered, wrong = int(above.sum()), int((above & ~correct.bool()).sum())
        bound = upper_bound(wrong, answered, delta / len(tried))
        found.append(Abstention(risk, delta, threshold, rows, answered, wrong, bound))
    if passing := [one for one in found if one.bound <= risk]:
        return max(passing, key=lambda one: one.answered)
    best = min(found, key=lambda one: one.bound)
    raise DataError(
        f"An error rate of at most {risk:g} (delta {delta:g}) cannot be promised: of the surest "
        f"{best.answered} of {rows} rows {best.wrong} are wrong. Give a risk above "
        f"{best.bound:.3g}, or more rows."
    )


def ranks(rows: int, risk: float, delta: float) -> list[int]:
    """Return how many of the surest rows are looked at: shares of all, without those that could never pass.

    Raises:
        ConfigError: `risk` or `delta` is out of range.
        DataError: none could pass.
    """
    for name, value in (("risk", risk), ("delta", delta)):
        if not 0.0 < value < 1.0:
            raise ConfigError(f"{name} is {value}: give a number between 0 and 1, 0.05 for example.")
    found = sorted({math.ceil(rows * share / SHARES) for share in range(1, SHARES + 1)})
    while found and upper_bound(0, found[0], delta / len(found)) > risk:
        del found[0]
    if not found:
        least = math.ceil(math.log(delta) / math.log1p(-risk))
        raise DataError(
            f"{rows} calibration rows are too few to promise an error rate of {risk:g} (delta {delta:g}), "
            f"even if all were right: give {least:,} or more."
        )
    return found


def upper_bound(wrong: int, rows: int, level: float) -> float:
    """Return the upper end for an error rate, exceeded with probability `level` (Clopper and Pearson 1934).

    >>> round(upper_bound(0, 29, 0.05), 4)
    0.0981
    """
    return 1.0 if wrong == rows else float(betaincinv(wrong + 1, rows - wrong, 1 - level))

"""Sets of answers that hold the right one as often as was asked for: split conformal prediction.

Each of n calibration rows, which nothing was fitted to, has a score s: how ill its right answer suits what
was predicted.

    l = floor((n + 1) alpha),     q = the l-th largest of the n scores,     C(x) = {y : s(x, y) <= q}

q is the empirical quantile of order `ceil((n + 1)(1 - alpha)) / n`. Where the calibration rows and a row to
come are exchangeable, the rank of its score among all n + 1 is uniform, whatever was predicted:

    1 - alpha <= P(y in C(x)) = 1 - l / (n + 1) < 1 - alpha + 1 / (n + 1)

(the equality where no two scores are equal; with equal ones P is larger). P is over the calibration rows,
too. Once these are drawn the coverage of the rows to come is a number, whose law is Beta(n + 1 - l, l) where
rows are independent and scores continuous (Vovk 2012). It speaks of all rows together, and promises nothing
for rows of one kind, nor for rows from elsewhere. Rows of one cluster (an author, a patient) are not
exchangeable with a row of another: one of each is (`bara_pyro.data.clusters.one_of_each`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bara_pyro.errors import ConfigError, DataError, check_choice
from bara_pyro.metrics._inputs import (
    DECIMALS,
    Numbers,
    check_labels,
    check_log_probs,
    check_predictions,
)
from bara_pyro.metrics.truth import known_truth
from bara_pyro.types import SetScore


@dataclass(frozen=True)
class PredictionSets:
    """Which answers are in the set of a row.

    Attributes:
        score: see `nonconformity`.
        alpha: the share of rows to come whose right answer may be missing.
        rows: the number n of calibration rows.
        threshold: the largest score of an answer in a set.
    """

    score: SetScore
    alpha: float
    rows: int
    threshold: float

    def __call__(self, log_probs: Numbers) -> Tensor:
        """Return which answers are in, bool, `n x C`, from log-probabilities, `n x C`."""
        return nonconformity(log_probs, self.score) <= self.threshold

    @property
    def law(self) -> tuple[int, int]:
        """The parameters of the Beta law of the coverage of rows to come."""
        missed = allowed(self.rows, self.alpha)
        return self.rows + 1 - missed, missed


def prediction_sets(
    log_probs: Numbers, labels: Tensor | Sequence[int], *, alpha: float, score: SetScore = "lac"
) -> PredictionSets:
    """Return sets that hold the right answer of a row to come with probability `1 - alpha` or more.

    Args:
        log_probs: `n x C`, natural log of the probabilities of calibration rows, which nothing was fitted to.
        labels: `n`, their right answers.
        alpha: between 0 and 1, at least `1 / (n + 1)`.
        score: see `nonconformity`.

    Raises:
        ConfigError: `alpha` is out of range, or the score is unknown.
        DataError: as of `metrics.scores`.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import prediction_sets
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]])
        >>> sets = prediction_sets(probs.log(), [0, 0, 0, 0], alpha=0.4)
        >>> round(sets.threshold, 4), sets(probs.log()).tolist()[2:]
        (0.4, [[True, False], [False, True]])
    """
    predicted, answers = check_predictions(log_probs, labels)
    missed = allowed(len(answers), alpha)
    scores = nonconformity(predicted, score).gather(1, answers[:, None]).squeeze(1)
    threshold = float(scores.sort(descending=True).values[missed - 1])
    return PredictionSets(score, alpha, len(answers), threshold)


def nonconformity(log_probs: Numbers, score: SetScore) -> Tensor:
    """Return how ill each answer suits what was predicted.

    Args:
        log_probs: `n x C`, natural log of the probabilities.
        score: `lac`: 1 - p(y), which makes the smallest sets on average (Sadinle, Lei and Wasserman 2019).
            `aps`: the probability of the answers that are more probable than y, which makes larger sets for
            harder rows (Romano, Sesia and Candes 2020, without its random part, so that the most probable
            answer is always in).

    Returns:
        float64, `n x C`, from 0 to 1.

    Raises:
        ConfigError: the score is unknown.
        DataError: as of `metrics.scores`.
    """
    check_choice("score", score, SetScore)
    probs = torch.round(check_log_probs(log_probs).exp(), decimals=DECIMALS)
    if score == "lac":
        found = 1 - probs
    else:
        found = ((probs[:, None, :] > probs[:, :, None]) * probs[:, None, :]).sum(-1)
    return torch.round(found, decimals=DECIMALS)


def allowed(rows: int, alpha: float) -> int:
    """Return the number l of `rows + 1` exchangeable rows that may be missed, `floor((rows + 1) alpha)`.

    Raises:
        ConfigError: `alpha` is not between 0 and 1, or so small that none may.
    """
    if not 0.0 < alpha < 1.0:
        raise ConfigError(f"alpha is {alpha}: give a number between 0 and 1, 0.1 for example.")
    found = math.floor(round((rows + 1) * alpha, 9))  # 100 * 0.29 is 28.999999999999996
    if not found:
        raise ConfigError(
            f"alpha={alpha:g} says nothing with {rows} calibration rows: give {1 / (rows + 1):.3g} or more, "
            f"or {math.ceil(round(1 / alpha, 9)) - 1:,} rows."
        )
    return found


def coverage(sets: Tensor, labels: Tensor | Sequence[int]) -> float:
    """Return the percentage of rows whose right answer is in its set (bool, `n x C`).

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import coverage
        >>> sets = torch.tensor([[True, False], [True, True], [False, True], [True, False]])
        >>> coverage(sets, [0, 1, 0, 0])  # all but the third hold their answer
        75.0
    """
    _check_sets(sets)
    answers = check_labels(labels, *sets.shape)
    return 100.0 * float(sets.cpu().gather(1, answers[:, None]).double().mean())


def expected_coverage(sets: Tensor, truth: Numbers) -> float:
    """Return the coverage in percent with each row's answer replaced by its true distribution.

    It has none of the noise of sampled labels.

    Args:
        sets: bool, `n x C`.
        truth: `n x C`, true probabilities; rows of NaN, whose truth is not known, are left out.

    Raises:
        DataError: no truth is known, or one is not a distribution.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import expected_coverage
        >>> sets = torch.tensor([[True, False], [True, True]])
        >>> round(expected_coverage(sets, [[0.8, 0.2], [0.5, 0.5]]), 4)  # the mean of 80 and 100
        90.0
    """
    _check_sets(sets)
    known, given = known_truth(truth, sets.shape)
    return 100.0 * float((given * sets.cpu())[known].sum(dim=1).mean())


def _check_sets(sets: Tensor) -> None:
    if sets.dtype != torch.bool or sets.dim() != 2 or not sets.numel():
        raise DataError(f"sets is {sets.dtype} of shape {tuple(sets.shape)}: give bool, rows x classes.")

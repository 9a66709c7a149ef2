"""Split conformal prediction: sets of answers that include the right one with a chosen probability.

The n calibration rows must be held out from training and tuning. Each has a score s(x, y) that is larger the
less its right answer y agrees with the prediction.

    l = floor((n + 1) alpha),     q = the l-th largest of the n scores,     C(x) = {y : s(x, y) <= q}

q is the empirical quantile of order `ceil((n + 1)(1 - alpha)) / n`. If the calibration rows and a new row are
exchangeable, the rank of the new score among all n + 1 is uniform for any model, so

    1 - alpha <= P(y in C(x)) = 1 - l / (n + 1) < 1 - alpha + 1 / (n + 1)

The equality holds if no two scores are equal; ties make P larger.

- P is a probability over calibration rows and the new row. Given the calibration rows, the coverage of new
  rows is a random number with distribution Beta(n + 1 - l, l), for independent rows and continuous scores
  (Vovk 2012).
- The guarantee is marginal. It does not hold for a subgroup of rows or for out-of-distribution rows.
- Rows of one cluster (an author, a patient) are not exchangeable with rows of another. Use one row from each
  cluster (`bara_pyro.data.clusters.one_of_each`).

Conformal p-values detect out-of-distribution rows with a bounded rate of false alarms.

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

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bara_pyro.errors import ConfigError, DataError, check_choice
from bara_pyro.metrics._inputs import (
    DECIMALS,
    Numbers,
    as_float64,
    check_labels,
    check_log_probs,
    check_predictions,
)
from bara_pyro.metrics.truth import known_truth
from bara_pyro.moved import warn_renamed
from bara_pyro.types import SetScore


@dataclass(frozen=True)
class PredictionSets:
    """A rule that gives the prediction set of a row.

    Attributes:
        score: the nonconformity score (see `nonconformity`).
        alpha: the share of new rows whose right answer may be missing from the set, 0..1.
        rows: the number n of calibration rows.
        threshold: the largest score of an answer in a set, 0..1.
    """

    score: SetScore
    alpha: float
    rows: int
    threshold: float

    def __call__(self, log_probs: Numbers) -> Tensor:
        """Return which answers are in the sets (bool, `n x C`) from log-probabilities (`n x C`)."""
        return nonconformity(log_probs, self.score) <= self.threshold

    @property
    def coverage_beta(self) -> tuple[int, int]:
        """The parameters of the Beta distribution of the coverage on new rows."""
        missed = allowed(self.rows, self.alpha)
        return self.rows + 1 - missed, missed

    @property
    def law(self) -> tuple[int, int]:
        """Old name of `coverage_beta`."""
        warn_renamed("law", "coverage_beta")
        return self.coverage_beta


def prediction_sets(
    log_probs: Numbers, labels: Tensor | Sequence[int], *, alpha: float, score: SetScore = "lac"
) -> PredictionSets:
    """Return a rule for sets that include the right answer of a new row with probability `1 - alpha` or more.

    Args:
        log_probs: `n x C`, natural log of the probabilities of calibration rows, which must be held out.
        labels: `n`, the right answers of the calibration rows.
        alpha: the largest probability that a set misses the right answer; at least `1 / (n + 1)`, below 1.
        score: the nonconformity score (see `nonconformity`).

    Raises:
        ConfigError: `alpha` is out of range, or the score is unknown.
        DataError: the inputs fail the checks of `metrics.scores`.

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
    """Return the nonconformity score of each answer: higher means less agreement with the prediction.

    Args:
        log_probs: `n x C`, natural log of the probabilities.
        score: `lac` or `aps`.

            - `lac` is 1 - p(y). It gives the smallest sets on average (Sadinle, Lei and Wasserman 2019).
            - `aps` is the total probability of the answers that are more probable than y. It gives larger
              sets for harder rows (Romano, Sesia and Candes 2020). The random part of that score is left out,
              so the most probable answer is always in the set.

    Returns:
        float64, `n x C`, from 0 to 1.

    Raises:
        ConfigError: the score is unknown.
        DataError: the inputs fail the checks of `metrics.scores`.
    """
    check_choice("score", score, SetScore)
    probs = torch.round(check_log_probs(log_probs).exp(), decimals=DECIMALS)
    if score == "lac":
        scores = 1 - probs
    else:
        scores = ((probs[:, None, :] > probs[:, :, None]) * probs[:, None, :]).sum(-1)
    return torch.round(scores, decimals=DECIMALS)


def allowed(rows: int, alpha: float) -> int:
    """Return the number of misses allowed among `rows + 1` exchangeable rows: `floor((rows + 1) alpha)`.

    If `alpha` is not between 0 and 1, or too small to allow one miss, this raises a `ConfigError`.
    """
    if not 0.0 < alpha < 1.0:
        raise ConfigError(f"alpha is {alpha}: give a number between 0 and 1, 0.1 for example.")
    count = math.floor(round((rows + 1) * alpha, 9))  # 100 * 0.29 is 28.999999999999996
    if not count:
        raise ConfigError(
            f"alpha={alpha:g} is too small for {rows} calibration rows: give alpha={1 / (rows + 1):.3g} or "
            f"more, or {math.ceil(round(1 / alpha, 9)) - 1:,} rows."
        )
    return count


def coverage(sets: Tensor, labels: Tensor | Sequence[int]) -> float:
    """Return the percentage of rows whose set includes the right answer.

    Args:
        sets: bool, `n x C`: which answers are in the set of each row.
        labels: `n`, index of the right answer.

    Raises:
        DataError: `sets` is not a bool matrix, or the labels do not match it.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import coverage
        >>> sets = torch.tensor([[True, False], [True, True], [False, True], [True, False]])
        >>> coverage(sets, [0, 1, 0, 0])  # only the third set misses its answer
        75.0
    """
    _check_sets(sets)
    answers = check_labels(labels, *sets.shape)
    return 100.0 * float(sets.cpu().gather(1, answers[:, None]).double().mean())


def expected_coverage(sets: Tensor, truth: Numbers) -> float:
    """Return the expected coverage in percent under the true answer distribution.

        100 / n * sum_i sum_(c in set i) t_i(c)

    It is free of the noise of sampled labels.

    Args:
        sets: bool, `n x C`: which answers are in the set of each row.
        truth: `n x C`, true probabilities t_i(c). Rows of NaN (unknown truth) are left out.

    Raises:
        DataError: no truth is known, or a truth is not a distribution.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import expected_coverage
        >>> sets = torch.tensor([[True, False], [True, True]])
        >>> round(expected_coverage(sets, [[0.8, 0.2], [0.5, 0.5]]), 4)  # the mean of 80 and 100
        90.0
    """
    _check_sets(sets)
    known, probs = known_truth(truth, sets.shape)
    return 100.0 * float((probs * sets.cpu())[known].sum(dim=1).mean())


def _check_sets(sets: Tensor) -> None:
    if sets.dtype != torch.bool or sets.dim() != 2 or not sets.numel():
        raise DataError(
            f"sets is a {sets.dtype} tensor of shape {tuple(sets.shape)}: give a bool tensor, rows x classes."
        )


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

"""Scores against the true answer distribution, for worlds that know `p(answer | question)`.

Each takes `log_probs` (`n x C`, natural log of the posterior-predictive probabilities) and `truth` (`n x C`,
true probabilities). A row whose truth is not known is a row of NaN; the scores are means over the other rows.
Errors: see `check_truth`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bara_pyro.errors import DataError
from bara_pyro.metrics._inputs import Numbers, as_float64, check_log_probs, top_label
from bara_pyro.metrics.reliability import DEFAULT_BINS, bin_means


def stack_truth(truths: Sequence[Sequence[float] | None], num_classes: int) -> Tensor:
    """Return the truths of a list of rows as one tensor (float64, `n x C`), NaN where there is None.

    `DataError`: a truth does not have `num_classes` entries.

    Examples:
        >>> from bara_pyro.metrics import stack_truth
        >>> stack_truth([(0.7, 0.3), None], 2).tolist()
        [[0.7, 0.3], [nan, nan]]
    """
    for row, truth in enumerate(truths):
        if truth is not None and len(truth) != num_classes:
            raise DataError(f"The truth of row {row} has {len(truth)} classes, not {num_classes}.")
    unknown = (float("nan"),) * num_classes
    return torch.tensor([tuple(unknown if t is None else t) for t in truths], dtype=torch.float64)


def check_truth(log_probs: Numbers, truth: Numbers) -> tuple[Tensor, Tensor]:
    """Return `log_probs` and `truth` (float64, `m x C`) of the m rows whose truth is known.

    `DataError`: the shapes differ, no truth is known, or a truth is not a distribution.
    """
    predicted = check_log_probs(log_probs)
    known, given = known_truth(truth, predicted.shape)
    return predicted[known], given[known]


def known_truth(truth: Numbers, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return of which of n rows the truth is known (bool, `n`), and the truths (float64, `n x C`).

    `DataError`: their shape is not that of the predictions, no truth is known, or one is not a distribution.
    """
    given = as_float64(truth, "truth", 2)
    if tuple(given.shape) != tuple(shape):
        raise DataError(f"truth has shape {tuple(given.shape)}, log_probs {tuple(shape)}: make them equal.")
    known = ~torch.isnan(given).all(dim=1)
    if not known.any():
        raise DataError("No row has a known truth: leave out the scores against the truth.")
    wrong = known & ~((given >= 0).all(dim=1) & ((given.sum(dim=1) - 1).abs() <= 1e-6))
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise DataError(f"The truth of row {row} is not a distribution: {given[row].tolist()}.")
    return known, given


def kl_from_truth(log_probs: Numbers, truth: Numbers) -> float:
    """Return the mean of KL(truth || prediction) in nats: 0 only where the prediction is the truth.

    An answer that can be true and has probability 0 gives infinity.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import kl_from_truth
        >>> log_probs = torch.tensor([[0.5, 0.5], [0.3, 0.7]]).log()
        >>> round(kl_from_truth(log_probs, [[1.0, 0.0], [0.3, 0.7]]), 4)  # log 2 and 0
        0.3466
    """
    predicted, known = check_truth(log_probs, truth)
    # 0 log 0 = 0 also where the prediction is 0, which a plain product would turn into NaN.
    cross = torch.where(known > 0, known * predicted, 0.0)
    return float((torch.special.xlogy(known, known) - cross).sum(dim=1).mean())


def calibration_against_truth(log_probs: Numbers, truth: Numbers, n_bins: int = DEFAULT_BINS) -> float:
    """Return the ECE in percent with each row's 0/1 correctness replaced by its expectation.

    The outcome of a row is the true probability of the label it predicts, so the score has none of the
    noise of sampled labels that ECE counts as miscalibration. Same bins as `ece`.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import calibration_against_truth
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.9, 0.1]]).log()
        >>> round(calibration_against_truth(log_probs, [[0.8, 0.2], [0.6, 0.4]]), 4)  # 90 - 70
        20.0
    """
    predicted, known = check_truth(log_probs, truth)
    confidence, label = top_label(predicted)
    return bin_means(confidence, known.gather(1, label[:, None]).squeeze(1), n_bins).ece


def regret(log_probs: Numbers, truth: Numbers) -> float:
    """Return the accuracy points lost to the Bayes classifier, in expectation under the truth.

    The mean over rows of `max_c truth_c - truth_(predicted label)`, in percent: 0 for a system that always
    names a most probable answer, however badly calibrated it is.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import regret
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()
        >>> round(regret(log_probs, [[0.8, 0.2], [0.4, 0.6]]), 4)  # the mean of 0 and 60 - 40
        10.0
    """
    predicted, known = check_truth(log_probs, truth)
    _, label = top_label(predicted)
    return 100.0 * float((known.amax(dim=1) - known.gather(1, label[:, None]).squeeze(1)).mean())

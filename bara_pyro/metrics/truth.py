"""Scores against the true answer distribution, for data sets that know `p(answer | question)`.

Every score takes

- `log_probs`, `n x C`: the natural log of the posterior-predictive probabilities;
- `truth`, `n x C`: the true probabilities. A row of NaN marks an unknown truth and is left out of the mean.

It raises `DataError` under the conditions that `check_truth` lists. In the formulas below, p_i(c) is the
predicted and t_i(c) the true probability of class c in row i.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bara_pyro.errors import DataError
from bara_pyro.metrics._inputs import Numbers, as_float64, check_log_probs, top_label
from bara_pyro.metrics.reliability import DEFAULT_BINS, bin_means


def stack_truth(truths: Sequence[Sequence[float] | None], num_classes: int) -> Tensor:
    """Return the true distributions of rows as one tensor (float64, `n x C`), with NaN for None.

    Raises:
        DataError: a truth does not have `num_classes` entries.

    Examples:
        >>> from bara_pyro.metrics import stack_truth
        >>> stack_truth([(0.7, 0.3), None], 2).tolist()
        [[0.7, 0.3], [nan, nan]]
    """
    for row, truth in enumerate(truths):
        if truth is not None and len(truth) != num_classes:
            raise DataError(
                f"The truth of row {row} has {len(truth)} classes, not {num_classes}: give one "
                "probability per class."
            )
    unknown = (float("nan"),) * num_classes
    return torch.tensor([tuple(unknown if t is None else t) for t in truths], dtype=torch.float64)


def check_truth(log_probs: Numbers, truth: Numbers) -> tuple[Tensor, Tensor]:
    """Return `log_probs` and `truth` (float64, `m x C`) of the m rows of known truth; see `known_truth`."""
    predicted = check_log_probs(log_probs)
    known, probs = known_truth(truth, predicted.shape)
    return predicted[known], probs[known]


def known_truth(truth: Numbers, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return a mask of the rows whose truth is known (bool, `n`) and all truths (float64, `n x C`).

    Raises:
        DataError: `truth` is not of shape `shape`, no truth is known, or a truth is not a distribution.
    """
    values = as_float64(truth, "truth", 2)
    if tuple(values.shape) != tuple(shape):
        raise DataError(
            f"truth has shape {tuple(values.shape)} and log_probs {tuple(shape)}: give both the same shape."
        )
    known = ~torch.isnan(values).all(dim=1)
    if not known.any():
        raise DataError("No row has a known truth: give the true probabilities of at least one row.")
    wrong = known & ~((values >= 0).all(dim=1) & ((values.sum(dim=1) - 1).abs() <= 1e-6))
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise DataError(
            f"The truth of row {row} is {values[row].tolist()}: give probabilities that sum to 1."
        )
    return known, values


def kl_from_truth(log_probs: Numbers, truth: Numbers) -> float:
    """Return the mean KL divergence from the truth to the prediction in nats; 0 is best.

        1 / n * sum_i sum_c t_i(c) * log(t_i(c) / p_i(c))

    It is infinite if a possible answer has a predicted probability of 0.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import kl_from_truth
        >>> log_probs = torch.tensor([[0.5, 0.5], [0.3, 0.7]]).log()
        >>> round(kl_from_truth(log_probs, [[1.0, 0.0], [0.3, 0.7]]), 4)  # log 2 and 0
        0.3466
    """
    predicted, known = check_truth(log_probs, truth)
    # 0 log 0 counts as 0; a plain product would be NaN if the prediction is also 0.
    cross = torch.where(known > 0, known * predicted, 0.0)
    return float((torch.special.xlogy(known, known) - cross).sum(dim=1).mean())


def calibration_against_truth(log_probs: Numbers, truth: Numbers, n_bins: int = DEFAULT_BINS) -> float:
    """Return the ECE in percent with each row's correctness replaced by its expectation; 0 is best.

    A row counts by the true probability of the class that it predicts, instead of by 0 or 1. The score is
    therefore free of the noise of sampled labels, which `ece` counts as miscalibration. Formula and bins are
    those of `ece`.

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
    """Return the expected accuracy lost against the Bayes classifier, in points; 0 is best.

        100 / n * sum_i (max_c t_i(c) - t_i(argmax_c p_i(c)))

    It is 0 for every system that always predicts a most probable answer, whether or not it is calibrated.

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

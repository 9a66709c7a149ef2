"""Scores of a classifier's predictive distribution: accuracy, calibration, likelihood.

Every score takes

- `log_probs`, `n x C`: the natural log of the posterior-predictive probabilities, averaged over draws;
- `labels`, `n`: the index of the right class.

It is computed in float64 as a mean over rows, not over batches. It raises `DataError` if the input is empty,
ragged or not log-probabilities. In the formulas below, p_i(c) is the probability of class c in row i, y_i the
label, and conf_i = max_c p_i(c) the confidence.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bara_pyro.metrics._inputs import (
    Numbers,
    as_float64,
    check_bins,
    check_predictions,
    correctness,
    mean_over_ties,
)
from bara_pyro.metrics.abstention import aurc
from bara_pyro.metrics.base import Metric, register_metric, scored
from bara_pyro.metrics.reliability import DEFAULT_BINS, bin_index, reliability_bins
from bara_pyro.metrics.truth import calibration_against_truth, kl_from_truth, regret


def accuracy(log_probs: Numbers, labels: Tensor | Sequence[int]) -> float:
    """Return the percentage of rows whose most probable class is the label; higher is better.

        100 / n * sum_i [argmax_c p_i(c) = y_i]

    The first of equally probable classes counts as the prediction.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import accuracy
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]]).log()
        >>> accuracy(log_probs, [0, 1, 0, 1])  # the last is wrong
        75.0
    """
    _, correct = correctness(*check_predictions(log_probs, labels))
    return 100.0 * float(correct.mean())


def ece(log_probs: Numbers, labels: Tensor | Sequence[int], n_bins: int = DEFAULT_BINS) -> float:
    """Return the expected calibration error (ECE) in percent; 0 is best.

        100 * sum_b n_b / n * |acc_b - conf_b|

    The rows are grouped by the confidence of their top label into `n_bins` bins of equal width. n_b is the
    number of rows in bin b, acc_b the fraction of them that is right, and conf_b their mean confidence. Bins
    include their left edge; the last bin includes both edges.

    Source: Guo et al. 2017 (arXiv 1706.04599).

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import ece
        >>> log_probs = torch.tensor([[0.9, 0.1]] * 10).log()
        >>> round(ece(log_probs, [0] * 9 + [1]), 4), round(ece(log_probs, [0] * 7 + [1] * 3), 4)  # of 90 %
        (0.0, 20.0)
    """
    return reliability_bins(log_probs, labels, n_bins).ece


def adaptive_ece(log_probs: Numbers, labels: Tensor | Sequence[int], n_bins: int = DEFAULT_BINS) -> float:
    """Return the calibration error over bins of equal mass in percent; 0 is best.

    The formula is that of `ece` with other bins: the rows are sorted by confidence and cut into `n_bins` runs
    whose sizes differ by at most one. Rows of equal confidence share their mean correctness, so the order of
    the rows does not matter. With fewer rows than bins, each row is a bin.

    Source: Nguyen and O'Connor 2015 (arXiv 1508.05154).

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import adaptive_ece
        >>> log_probs = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.6, 0.4], [0.6, 0.4]]).log()
        >>> round(adaptive_ece(log_probs, [0, 0, 0, 1], n_bins=2), 4)  # the mean of 100 - 80 and 60 - 50
        15.0
    """
    confidence, correct = correctness(*check_predictions(log_probs, labels))
    gaps = (mean_over_ties(confidence, correct) - confidence)[confidence.argsort()]
    runs = gaps.tensor_split(min(check_bins(n_bins), len(gaps)))
    return 100.0 * sum(abs(float(run.sum())) for run in runs) / len(gaps)


def nll_per_example(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Return the negative log-probability of each label (nats, `n`), of checked inputs."""
    return -log_probs.gather(1, labels[:, None]).squeeze(1)


def brier_per_example(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Return the squared distance of each row to its one-hot label (0..2, `n`), of checked inputs."""
    target = torch.nn.functional.one_hot(labels, log_probs.shape[1])
    return (log_probs.exp() - target).square().sum(dim=1)


def nll(log_probs: Numbers, labels: Tensor | Sequence[int]) -> float:
    """Return the mean negative log-likelihood of the labels in nats; lower is better.

        -1 / n * sum_i log p_i(y_i)

    Probabilities are not clipped: one right answer with probability 0 makes the score infinite.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import nll
        >>> log_probs = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
        >>> round(nll(log_probs, [0, 0]), 4)  # (log 2 + log 4) / 2
        1.0397
    """
    return float(nll_per_example(*check_predictions(log_probs, labels)).mean()) + 0.0  # no "-0.0"


def brier(log_probs: Numbers, labels: Tensor | Sequence[int]) -> float:
    """Return the mean Brier score, summed over classes: 0 is best, 2 is worst.

        1 / n * sum_i sum_c (p_i(c) - [c = y_i])^2

    Source: Brier 1950, Monthly Weather Review 78, 1-3.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import brier
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.4, 0.6]]).log()
        >>> round(brier(log_probs, [0, 0]), 4)  # the mean of 2 * 0.1 ** 2 and 2 * 0.6 ** 2
        0.37
    """
    return float(brier_per_example(*check_predictions(log_probs, labels)).mean())


def evaluate(
    log_probs: Numbers,
    labels: Tensor | Sequence[int],
    truth: Numbers | None = None,
) -> dict[str, float]:
    """Return every registered score of one system on one set of rows.

    Args:
        log_probs: `n x C`, natural log of the posterior-predictive probabilities.
        labels: `n`, index of the right class.
        truth: `n x C`, true answer probabilities. A row of NaN marks an unknown truth
            (`truth.stack_truth` builds such a tensor).

    Returns:
        The scores by name: `n` (number of rows), `acc` (percent), `ece` (percent, 15 bins), `nll` (nats),
        `brier` (0..2), `aece` (percent, 15 bins of equal mass) and `aurc` (percent). If a truth is known also
        `n_truth` (number of such rows), `kl_truth` (nats), `ece_truth` (percent) and `regret` (accuracy
        points). Higher is better for `acc`, lower for all other scores.

    Raises:
        DataError: the input is empty, ragged or not log-probabilities.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import evaluate
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]]).log()
        >>> scores = evaluate(log_probs, [0, 1, 0, 1])
        >>> for name in ("acc", "ece", "nll"):
        ...     print(name, round(scores[name], 3))
        acc 75.0
        ece 35.0
        nll 0.511

        With the true probabilities:

        >>> truth = [[0.9, 0.1], [0.2, 0.8], [0.5, 0.5], [0.4, 0.6]]
        >>> found = evaluate(log_probs, [0, 1, 0, 1], truth)
        >>> round(found["kl_truth"], 4), round(found["regret"], 4)
        (0.0531, 5.0)
    """
    checked = check_predictions(log_probs, labels)
    scores = {"n": len(checked[1]), **scored(*checked, of_truth=False)}
    if truth is None:
        return scores
    known = int((~torch.isnan(as_float64(truth, "truth", 2)).all(dim=1)).sum())
    if not known:
        return scores
    return scores | {"n_truth": known, **scored(checked[0], truth, of_truth=True)}


def accuracy_per_row(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Return 100 for each row whose most probable class is the label and 0 for others, `n`."""
    return 100.0 * correctness(log_probs, labels)[1]


def ece_per_row(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Return each row's correctness minus confidence (percent) in the column of its bin, `n x bins`."""
    confidence, correct = correctness(log_probs, labels)
    columns = torch.zeros(len(labels), DEFAULT_BINS, dtype=torch.float64)
    return columns.scatter(
        1, bin_index(confidence, DEFAULT_BINS)[:, None], 100.0 * (correct - confidence)[:, None]
    )


for metric in (
    Metric("acc", accuracy, "%", "max", 1, accuracy_per_row, "accuracy", "acc"),
    Metric("ece", ece, "%", "min", 1, ece_per_row, "ECE", "ECE"),
    Metric("nll", nll, "nats", "min", 3, nll_per_example, "NLL", "NLL"),
    Metric("brier", brier, "", "min", 3, brier_per_example, "Brier score", "Brier"),
    Metric("aece", adaptive_ece, "%", "min", 1, title="adaptive ECE"),
    Metric("aurc", aurc, "%", "min", 1, title="area under the risk-coverage curve"),
    Metric("kl_truth", kl_from_truth, "nats", "min", 3, None, "KL from the truth", "KL", of_truth=True),
    Metric("ece_truth", calibration_against_truth, "%", "min", 1, None, "ECE of the truth", of_truth=True),
    Metric("regret", regret, "points", "min", 1, title="regret", of_truth=True),
):
    register_metric(metric)

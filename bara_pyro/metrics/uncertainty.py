"""What the spread of the posterior draws says: predictive distribution, kinds of uncertainty, detection."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bara_pyro.errors import DataError
from bara_pyro.metrics._inputs import as_float64, check_log_probs


@dataclass(frozen=True)
class Uncertainty:
    """The uncertainty of each row in nats; `total = aleatoric + epistemic` up to rounding.

    Attributes:
        total: float64, `n`: entropy of the mean prediction.
        aleatoric: float64, `n`: expected entropy of a draw's prediction.
        epistemic: float64, `n`, not negative: mutual information between answer and latent variables.
    """

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


def posterior_predictive(draws: Tensor | Sequence[Any]) -> Tensor:
    """Return the log of the mean over draws of the predicted probabilities (not of the logits).

    Args:
        draws: `S x n x C`, natural log of the probabilities under each posterior draw.

    Returns:
        float64, `n x C`: `logsumexp_s(draws) - log S`.

    Raises:
        DataError: when the input is empty, ragged or not log-probabilities.
    """
    checked = check_log_probs(draws, "draws", dims=3)
    return torch.logsumexp(checked, dim=0) - math.log(len(checked))


def decompose(draws: Tensor | Sequence[Any]) -> Uncertainty:
    """Split the predictive uncertainty into aleatoric and epistemic (Depeweg et al. 2018).

    Args:
        draws: `S x n x C`, natural log of the probabilities under each posterior draw.

    Raises:
        DataError: when the input is empty, ragged or not log-probabilities.
    """
    probs = check_log_probs(draws, "draws", dims=3).exp()
    total = torch.special.entr(probs.mean(dim=0)).sum(dim=-1)
    aleatoric = torch.special.entr(probs).sum(dim=-1).mean(dim=0)
    # Entropy is concave, so the difference is below 0 by rounding only.
    return Uncertainty(total, aleatoric, (total - aleatoric).clamp(min=0.0))


def ood_auroc(in_score: Tensor | Sequence[float], out_score: Tensor | Sequence[float]) -> float:
    """Return how well a score tells out-of-distribution rows from in-distribution ones (AUROC, percent).

    It is the probability that a row from outside scores higher than one from inside, ties counting half:
    50 is chance, 100 perfect.

    Args:
        in_score: `n`, uncertainty of the in-distribution rows (entropy or mutual information, any unit).
        out_score: `m`, the same of the out-of-distribution rows.

    Raises:
        DataError: when either is empty or holds NaN.
    """
    # Imported here: it takes seconds, which no command but evaluation should pay.
    from torchmetrics.functional.classification import binary_auroc

    inside, outside = as_float64(in_score, "in_score", 1), as_float64(out_score, "out_score", 1)
    scores = torch.cat([inside, outside])
    if torch.isnan(scores).any():
        raise DataError("A score is NaN: the prediction failed there.")
    # torchmetrics passes scores outside 0..1 through a sigmoid, which ties all large ones: give it ranks.
    levels, rank = torch.unique(scores, return_inverse=True)
    target = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))]).long()
    return 100.0 * float(binary_auroc(rank.double() / max(len(levels) - 1, 1), target))

"""What the spread of the posterior draws says: predictive distribution, kinds of uncertainty, detection.

Draws are `S x n x C`, natural log of the probabilities under each posterior draw; `DataError`: they are
empty, ragged or no log-probabilities.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bara_pyro.errors import DataError
from bara_pyro.metrics._inputs import Numbers, as_float64, check_log_probs


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


def posterior_predictive(draws: Numbers) -> Tensor:
    """Return the log of the mean over draws of the probabilities (not of the logits), float64, `n x C`.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import posterior_predictive
        >>> draws = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log()  # 2 x 1 x 2
        >>> posterior_predictive(draws).exp().round(decimals=4).tolist()  # of probabilities
        [[0.7, 0.3]]
    """
    checked = check_log_probs(draws, "draws", dims=3)
    return torch.logsumexp(checked, dim=0) - math.log(len(checked))


def decompose(draws: Numbers) -> Uncertainty:
    """Split the predictive uncertainty into aleatoric and epistemic (Depeweg et al. 2018).

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import decompose
        >>> agree, disagree = [[0.5, 0.5], [1.0, 0.0]], [[0.5, 0.5], [0.0, 1.0]]  # of two rows, two draws
        >>> found = decompose(torch.tensor([agree, disagree]).log())
        >>> found.total.round(decimals=4).tolist()  # log 2 of both, for another reason:
        [0.6931, 0.6931]
        >>> found.aleatoric.round(decimals=4).tolist(), found.epistemic.round(decimals=4).tolist()
        ([0.6931, 0.0], [0.0, 0.6931])
    """
    probs = check_log_probs(draws, "draws", dims=3).exp()
    total = torch.special.entr(probs.mean(dim=0)).sum(dim=-1)
    aleatoric = torch.special.entr(probs).sum(dim=-1).mean(dim=0)
    # Entropy is concave, so the difference is below 0 by rounding only.
    return Uncertainty(total, aleatoric, (total - aleatoric).clamp(min=0.0))


@dataclass(frozen=True)
class NestedUncertainty:
    """The uncertainty of each row in nats; `total` is the sum of the three others up to rounding.

    Attributes:
        total: float64, `n`: entropy of the mean prediction.
        aleatoric: float64, `n`: expected entropy of a draw's prediction.
        global_: float64, `n`: mutual information of answer and global latents (Phi).
        local: float64, `n`: mutual information of answer and local latents (theta), given the global ones.
    """

    total: Tensor
    aleatoric: Tensor
    global_: Tensor
    local: Tensor


def decompose_nested(draws: Numbers, repeats: int) -> NestedUncertainty:
    """Split the epistemic part further, into what global and what local latents contribute.

        I(y; Phi) = H(E[p]) - E_Phi[H(E_theta[p])]        I(y; theta | Phi) = E_Phi[H(E_theta[p])] - E[H(p)]

    With L draws of theta for each Phi, their sampling error is counted with Phi's part: it shrinks with 1/L.

    Args:
        draws: `S x n x C`, natural log of the probabilities, of `core.prediction.predict(repeats=repeats)`.
        repeats: the number L of successive draws that share their global latents; S is a multiple of it.

    Raises:
        DataError: S is no multiple of `repeats`, or the draws are not log-probabilities.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import decompose_nested
        >>> probs = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]  # two Phi, two draws of theta under each
        >>> found = decompose_nested(torch.tensor(probs)[:, None].log(), repeats=2)
        >>> [round(float(part), 4) for part in (found.total, found.aleatoric, found.global_, found.local)]
        [0.6931, 0.0, 0.6931, 0.0]
    """
    checked = check_log_probs(draws, "draws", dims=3)
    if repeats < 1 or len(checked) % repeats:
        raise DataError(
            f"{len(checked)} draws cannot be cut into groups of {repeats}: draw a multiple of it."
        )
    whole = decompose(checked)
    groups = checked.exp().unflatten(0, (-1, repeats)).mean(dim=1)
    inner = torch.special.entr(groups).sum(dim=-1).mean(dim=0)
    outer, local = whole.total - inner, inner - whole.aleatoric
    return NestedUncertainty(whole.total, whole.aleatoric, outer.clamp(min=0.0), local.clamp(min=0.0))


def ood_auroc(in_score: Tensor | Sequence[float], out_score: Tensor | Sequence[float]) -> float:
    """Return how well a score tells out-of-distribution rows from in-distribution ones (AUROC, percent).

    It is the probability that a row from outside scores higher than one from inside, ties counting half:
    50 is chance, 100 perfect.

    Args:
        in_score: `n`, uncertainty of the in-distribution rows (entropy or mutual information, any unit).
        out_score: `m`, the same of the out-of-distribution rows.

    Raises:
        DataError: when either is empty or holds NaN.

    Examples:
        >>> from bara_pyro.metrics import ood_auroc
        >>> round(ood_auroc([0.1, 0.2, 0.4], [0.3, 0.5]), 4)  # 5 of the 6 pairs are in order
        83.3333
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

"""Summaries of posterior draws: predictive distribution, decomposed uncertainty, out-of-distribution AUROC.

`draws` has shape `S x n x C`: the natural log of the probabilities of S posterior draws, n rows and C
classes. Every function raises `DataError` if they are empty, ragged or not log-probabilities. In the formulas
below, p_s is the prediction of draw s for a row and H the entropy.
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
        aleatoric: float64, `n`: mean entropy of the draws' predictions.
        epistemic: float64, `n`, at least 0: mutual information of the answer and the latent variables.
    """

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


def posterior_predictive(draws: Numbers) -> Tensor:
    """Return the log of the mean probabilities over draws, float64, `n x C`.

        log(1 / S * sum_s p_s)

    Probabilities are averaged, not logits.

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
    """Split the predictive uncertainty of each row into an aleatoric and an epistemic part.

        total = H(1/S sum_s p_s)        aleatoric = 1/S sum_s H(p_s)        epistemic = total - aleatoric

    Source: Depeweg et al. 2018 (arXiv 1710.07283).

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import decompose
        >>> draws = [[[0.5, 0.5], [1.0, 0.0]], [[0.5, 0.5], [0.0, 1.0]]]  # two draws of two rows
        >>> found = decompose(torch.tensor(draws).log())
        >>> found.total.round(decimals=4).tolist()  # log 2 in both rows, for different reasons:
        [0.6931, 0.6931]
        >>> found.aleatoric.round(decimals=4).tolist(), found.epistemic.round(decimals=4).tolist()
        ([0.6931, 0.0], [0.0, 0.6931])
    """
    probs = check_log_probs(draws, "draws", dims=3).exp()
    total = torch.special.entr(probs.mean(dim=0)).sum(dim=-1)
    aleatoric = torch.special.entr(probs).sum(dim=-1).mean(dim=0)
    # Entropy is concave, so only rounding can make the difference negative.
    return Uncertainty(total, aleatoric, (total - aleatoric).clamp(min=0.0))


@dataclass(frozen=True)
class NestedUncertainty:
    """The uncertainty of each row in nats; `total` is the sum of the three other parts up to rounding.

    Attributes:
        total: float64, `n`: entropy of the mean prediction.
        aleatoric: float64, `n`: mean entropy of the draws' predictions.
        global_: float64, `n`: mutual information of the answer and the global latent variables (Phi).
        local: float64, `n`: mutual information of the answer and the local latent variables (theta), given
            the global ones.
    """

    total: Tensor
    aleatoric: Tensor
    global_: Tensor
    local: Tensor


def decompose_nested(draws: Numbers, repeats: int) -> NestedUncertainty:
    """Split the epistemic uncertainty of each row further, into the parts of global and local latents.

        I(y; Phi) = H(E[p]) - E_Phi[H(E_theta[p])]        I(y; theta | Phi) = E_Phi[H(E_theta[p])] - E[H(p)]

    The means over theta use L draws for each Phi. Their sampling error is counted in Phi's part and shrinks
    with 1/L.

    Args:
        draws: `S x n x C`, natural log of the probabilities from `core.prediction.predict(repeats=repeats)`.
        repeats: the number L of successive draws that share their global latents; S must be a multiple.

    Raises:
        DataError: S is not a multiple of `repeats`, or the draws are not log-probabilities.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import decompose_nested
        >>> probs = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]  # two Phi, two theta each
        >>> found = decompose_nested(torch.tensor(probs)[:, None].log(), repeats=2)
        >>> [round(float(part), 4) for part in (found.total, found.aleatoric, found.global_, found.local)]
        [0.6931, 0.0, 0.6931, 0.0]
    """
    checked = check_log_probs(draws, "draws", dims=3)
    if repeats < 1 or len(checked) % repeats:
        raise DataError(
            f"{len(checked)} draws cannot be split into groups of {repeats}: draw a multiple of {repeats}."
        )
    all_draws = decompose(checked)
    groups = checked.exp().unflatten(0, (-1, repeats)).mean(dim=1)
    inner = torch.special.entr(groups).sum(dim=-1).mean(dim=0)
    outer, local = all_draws.total - inner, inner - all_draws.aleatoric
    return NestedUncertainty(all_draws.total, all_draws.aleatoric, outer.clamp(min=0.0), local.clamp(min=0.0))


def ood_auroc(in_score: Tensor | Sequence[float], out_score: Tensor | Sequence[float]) -> float:
    """Return the AUROC in percent of a score that should be higher on out-of-distribution rows.

        100 * P(out > in) + 50 * P(out = in)

    for a random out-of-distribution and a random in-distribution row: 50 is chance, 100 is perfect.

    Args:
        in_score: `n`, uncertainty of the in-distribution rows (entropy or mutual information, any unit).
        out_score: `m`, uncertainty of the out-of-distribution rows in the same unit.

    Raises:
        DataError: an input is empty or contains NaN.

    Examples:
        >>> from bara_pyro.metrics import ood_auroc
        >>> round(ood_auroc([0.1, 0.2, 0.4], [0.3, 0.5]), 4)  # 5 of 6 pairs are in order
        83.3333
    """
    inside, outside = as_float64(in_score, "in_score", 1), as_float64(out_score, "out_score", 1)
    if torch.cat([inside, outside]).isnan().any():
        raise DataError("A score is NaN: the prediction failed there.")
    # Pairs of equal scores count as half in order.
    below, up_to = (torch.searchsorted(inside.sort().values, outside, right=right) for right in (False, True))
    return 100.0 * float((below + up_to).double().mean()) / (2 * len(inside))

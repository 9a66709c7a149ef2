"""Temperature scaling (Guo et al., ICML 2017): maximum-likelihood training, then one number on held-out rows.

Of one LoRA, or of an ensemble, whose members have it in common: the T under which the average of their
probabilities has the least NLL ("joint pool-and-calibrate" in Rahaman and Thiery, NeurIPS 2021).
"""

import math
from typing import Any

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.ensemble import EnsembleGuide
from bara_pyro.methods.base import Fit, Method, MethodConfig, pair, register_method
from bara_pyro.methods.bisection import sign_change
from bara_pyro.methods.ensemble import EnsembleConfig, ensemble_svi
from bara_pyro.methods.space import SearchSpace
from bara_pyro.metrics import nll, posterior_predictive
from bara_pyro.models.ensemble import Ensemble
from bara_pyro.models.temperature import Tempered, TemperedEnsemble, TemperedLoRA

# Rows that are all right (or mostly wrong) want T = 0 (or infinity): the fit stops here.
COLDEST, HOTTEST = 0.01, 100.0


class TemperatureConfig(MethodConfig):
    """Settings of temperature scaling: none.

    Published code has AdamW move the scalar 1/T, which nothing keeps positive, for 5,000 steps of 4 rows at
    rate 1e-3. The NLL is convex in 1/T, so the exact minimum over all rows takes milliseconds instead. That
    code stops at BoolQ, whose validation split is the one tested on: rows must be set aside from train.

    Trainable are LoRA's parameters, which `bara params` counts; the second stage fits one more.
    """


class TemperedEnsembleConfig(EnsembleConfig):
    """Settings of an ensemble with a temperature: those of the ensemble."""


TemperatureFit = Fit[Tempered, SiteGuide, Any]


def check_validation(fit: TemperatureFit) -> None:
    """Refuse to train where there is nothing to fit the temperature on.

    Raises:
        DataError: the task has no validation rows, or one of them is too long.
    """
    fit.split("validation")


def best_log_temperature(log_probs: Tensor, labels: Tensor) -> float:
    """Return the ln T that minimises the mean NLL of `softmax(log_probs / T)`.

    Args:
        log_probs: `n x C`, logits or log-probabilities at T = 1.
        labels: `n`, long.

    Returns:
        The minimum, to the last digits of float64, within `[ln COLDEST, ln HOTTEST]`.
    """
    z = log_probs.double()
    right = z.gather(1, labels[:, None]).squeeze(1)

    def slope(log_temperature: float) -> float:
        """Return dNLL / dT times a positive number; the NLL is convex in 1/T, so it changes sign once."""
        expected = ((z / math.exp(log_temperature)).softmax(-1) * z).nan_to_num().sum(-1)
        return float((right - expected).mean())

    return sign_change(slope, math.log(COLDEST), math.log(HOTTEST))


def best_common_log_temperature(draws: Tensor, labels: Tensor) -> float:
    """Return the ln T that minimises the mean NLL of the average over draws of `softmax(log_probs / T)`.

    Args:
        draws: `S x n x C`, logits or log-probabilities at T = 1.
        labels: `n`, long.

    Returns:
        Of one draw, the minimum. Of several it need not be the only one: the lowest on a grid of steps of 5
        percent, then the lowest beside it to a tenth of a permille.
    """
    if len(draws) == 1:
        return best_log_temperature(draws[0], labels)
    z = draws.double()

    def at(log_temperature: float) -> float:
        return nll(posterior_predictive((z / math.exp(log_temperature)).log_softmax(-1)), labels)

    grid = torch.linspace(math.log(COLDEST), math.log(HOTTEST), 190, dtype=torch.float64).tolist()
    lowest = min(range(len(grid)), key=lambda place: at(grid[place]))
    around = grid[max(0, lowest - 1)], grid[min(len(grid) - 1, lowest + 1)]
    return float(minimize_scalar(at, bounds=around, method="bounded", options={"xatol": 1e-4}).x)


@torch.no_grad()
def fit_temperature(fit: TemperatureFit) -> dict[str, float]:
    """Set the temperature to the best on the validation rows, members averaged as predictions are.

    Returns:
        `temperature`, `nll_1` and `nll_temperature` (nats, on the validation rows), `validation_rows`.
    """
    split = fit.split("validation")
    labels = torch.tensor(split.labels)
    samples = 1 if isinstance(fit.model, Ensemble) else 0  # 1: all members, whatever the number
    before = fit.draw(split, samples, seed=fit.seed)
    found = best_common_log_temperature(before, labels)
    fit.model.set_temperature(found)
    after = fit.draw(split, samples, seed=fit.seed)
    return {
        "temperature": math.exp(found),
        "nll_1": nll(posterior_predictive(before), labels),
        "nll_temperature": nll(posterior_predictive(after), labels),
        "validation_rows": len(split),
    }


register_method(
    Method(
        "temperature",
        "LoRA by maximum likelihood, then a temperature fitted on validation rows (Guo et al., 2017)",
        TemperatureConfig,
        pair(TemperedLoRA, DeltaGuide),
        finish=fit_temperature,
        check=check_validation,
        uses_validation=lambda config: True,
        peft=True,  # the LoRA; whoever reads it so divides the logits by the temperature himself
        display="Temperature",
        order=10,
        tags=frozenset({"recalibrated"}),
        search=SearchSpace(),
    )
)
register_method(
    Method(
        "ensemble_temperature",
        "Deep ensemble of LoRAs, then a temperature of all members fitted on validation rows",
        TemperedEnsembleConfig,
        pair(TemperedEnsemble, EnsembleGuide),
        svi=ensemble_svi,
        finish=fit_temperature,
        check=check_validation,
        uses_validation=lambda config: True,
        display="Ensemble, temperature",
        order=10,
        search=SearchSpace(),
    )
)

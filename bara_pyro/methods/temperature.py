"""Temperature scaling (Guo et al., ICML 2017): maximum-likelihood training, then one number on held-out rows.

Of one LoRA, or of an ensemble, whose members have it in common: the T under which the average of their
probabilities has the least NLL ("joint pool-and-calibrate" in Rahaman and Thiery, NeurIPS 2021).
"""

import math
from typing import Any

import torch

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.program import AdaptedLM
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.ensemble import EnsembleGuide
from bara_pyro.methods.base import Fit, Method, MethodConfig, pair, register_method
from bara_pyro.methods.ensemble import EnsembleConfig, ensemble_svi
from bara_pyro.metrics import nll, posterior_predictive
from bara_pyro.models.ensemble import Ensemble
from bara_pyro.models.lora import LoRA
from bara_pyro.posthoc.corrections import require_temperature
from bara_pyro.posthoc.temperature import best_common_log_temperature


class TemperatureConfig(MethodConfig):
    """Settings of temperature scaling: none.

    Published code has AdamW move the scalar 1/T, which nothing keeps positive, for 5,000 steps of 4 rows at
    rate 1e-3. The NLL is convex in 1/T, so the exact minimum over all rows takes milliseconds instead. That
    code stops at BoolQ, whose validation split is the one tested on: rows must be set aside from train.

    Trainable are LoRA's parameters, which `bara params` counts; the second stage fits one more.
    """


class TemperedEnsembleConfig(EnsembleConfig):
    """Settings of an ensemble with a temperature: those of the ensemble."""


TemperatureFit = Fit[AdaptedLM, SiteGuide, Any]


def check_validation(fit: TemperatureFit) -> None:
    """Refuse to train where there is nothing to fit the temperature on.

    Raises:
        DataError: the task has no validation rows, or one of them is too long.
    """
    fit.split("validation")


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
    require_temperature(fit.corrections).set(found)
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
        pair(LoRA, DeltaGuide),
        finish=fit_temperature,
        check=check_validation,
        uses_validation=lambda config: True,
        tempered=True,
        peft=True,  # the LoRA; whoever reads it so divides the logits by the temperature himself
    )
)
register_method(
    Method(
        "ensemble_temperature",
        "Deep ensemble of LoRAs, then a temperature of all members fitted on validation rows",
        TemperedEnsembleConfig,
        pair(Ensemble, EnsembleGuide),
        svi=ensemble_svi,
        finish=fit_temperature,
        check=check_validation,
        uses_validation=lambda config: True,
        tempered=True,
    )
)

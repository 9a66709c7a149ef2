"""Temperature scaling (Guo et al., ICML 2017): maximum-likelihood LoRA, then one number on held-out rows."""

import math

import torch
from torch import Tensor

from bara_pyro.core.backbone import Backbone
from bara_pyro.core.likelihood import require_answer_tokens
from bara_pyro.core.program import AdapterOptions
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.methods.base import Fit, Method, MethodConfig, pair, register_method
from bara_pyro.methods.bisection import sign_change
from bara_pyro.methods.space import SearchSpace
from bara_pyro.metrics import nll
from bara_pyro.models.temperature import TemperedLoRA

# Rows that are all right (or mostly wrong) want T = 0 (or infinity): the fit stops here.
COLDEST, HOTTEST = 0.01, 100.0


class TemperatureConfig(MethodConfig):
    """Settings of temperature scaling: none.

    Published code has AdamW move the scalar 1/T, which nothing keeps positive, for 5,000 steps of 4 rows at
    rate 1e-3. The NLL is convex in 1/T, so the exact minimum over all rows takes milliseconds instead. That
    code stops at BoolQ, whose validation split is the one tested on: rows must be set aside from train.

    Trainable are LoRA's parameters, which `bara params` counts; the second stage fits one more.
    """


TemperatureFit = Fit[TemperedLoRA, DeltaGuide, TemperatureConfig]


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


@torch.no_grad()
def fit_temperature(fit: TemperatureFit) -> dict[str, float]:
    """Set the temperature to the best on the validation rows.

    Returns:
        `temperature`, `nll_1` and `nll_temperature` (nats, on the validation rows), `validation_rows`.
    """
    split = fit.split("validation")
    labels = torch.tensor(split.labels)
    before = fit.draw(split, 0, seed=fit.seed)[0]
    found = best_log_temperature(before, labels)
    fit.model.set_temperature(found)
    return {
        "temperature": math.exp(found),
        "nll_1": nll(before, labels),
        "nll_temperature": nll(fit.draw(split, 0, seed=fit.seed)[0], labels),
        "validation_rows": len(split),
    }


def build_tempered(
    backbone: Backbone, num_data: int, adapter: AdapterOptions, config: TemperatureConfig
) -> tuple[TemperedLoRA, DeltaGuide]:
    """Return program and guide; `best_log_temperature` divides the answers' logits, so these must be tokens'.

    Raises:
        ConfigError: the likelihood is not that of answers of one token.
    """
    model, guide = pair(TemperedLoRA, DeltaGuide)(backbone, num_data, adapter, config)
    require_answer_tokens(model.likelihood, "Temperatures")
    return model, guide


register_method(
    Method(
        "temperature",
        "LoRA by maximum likelihood, then a temperature fitted on validation rows (Guo et al., 2017)",
        TemperatureConfig,
        build_tempered,
        finish=fit_temperature,
        check=check_validation,
        peft=True,  # the LoRA; whoever reads it so divides the logits by the temperature himself
        display="Temperature",
        order=10,
        tags=frozenset({"recalibrated"}),
        search=SearchSpace(),
    )
)

"""Temperature scaling (Guo et al., ICML 2017) of a LoRA or an ensemble, fitted on held-out rows.

After maximum-likelihood training, the temperature minimises the NLL of held-out rows. The members of an
ensemble share one temperature, which minimises the NLL of their average ("joint pool-and-calibrate" in
Rahaman and Thiery, NeurIPS 2021).

Published code trains the scalar 1/T, which may become negative, with AdamW for 5,000 steps of 4 rows. The NLL
is convex in 1/T, so its exact minimum over all rows takes milliseconds.
"""

import math
from typing import Any

import torch

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.program import AdaptedLM
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.ensemble import EnsembleGuide
from bara_pyro.methods.base import AS_IT_IS, Fit, Method, MethodConfig, pair, register_method
from bara_pyro.methods.ensemble import EnsembleConfig, ensemble_svi
from bara_pyro.metrics import nll, posterior_predictive
from bara_pyro.models.ensemble import Ensemble
from bara_pyro.models.lora import LoRA
from bara_pyro.posthoc.corrections import require_temperature
from bara_pyro.posthoc.temperature import best_common_log_temperature

TemperatureFit = Fit[AdaptedLM, SiteGuide, Any]


@torch.no_grad()
def fit_temperature(fit: TemperatureFit) -> dict[str, float]:
    """Set the temperature with the lowest NLL on the validation rows; members are averaged as in prediction.

    Return `temperature`, `nll_1` and `nll_temperature` (nats, on the validation rows), `validation_rows`.
    """
    split = fit.split("validation")
    labels = torch.tensor(split.labels)
    samples = 1 if isinstance(fit.model, Ensemble) else 0  # an ensemble uses all its members with S >= 1
    before = fit.draw(split, samples, seed=fit.seed)
    log_temperature = best_common_log_temperature(before, labels)
    require_temperature(fit.corrections).set(log_temperature)
    after = fit.draw(split, samples, seed=fit.seed)
    return {
        "temperature": math.exp(log_temperature),
        "nll_1": nll(posterior_predictive(before), labels),
        "nll_temperature": nll(posterior_predictive(after), labels),
        "validation_rows": len(split),
    }


register_method(
    Method(
        "temperature",
        "LoRA by maximum likelihood, then a temperature fitted on validation rows (Guo et al., 2017)",
        MethodConfig,
        pair(LoRA, DeltaGuide),
        finish=fit_temperature,
        check=lambda fit: fit.split("validation"),
        uses_validation=lambda config: True,
        tempered=True,
        peft=True,  # without the temperature: readers of the LoRA must divide the logits by it
        start=AS_IT_IS,
    )
)
register_method(
    Method(
        "ensemble_temperature",
        "Deep ensemble of LoRAs, then a shared temperature fitted on validation rows",
        EnsembleConfig,
        pair(Ensemble, EnsembleGuide),
        svi=ensemble_svi,
        finish=fit_temperature,
        check=lambda fit: fit.split("validation"),
        uses_validation=lambda config: True,
        tempered=True,
    )
)

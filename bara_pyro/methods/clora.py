"""C-LoRA: a contextual posterior over a matrix between the factors (Rahmati et al., NeurIPS 2025)."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat
from torch.optim import AdamW

from bara_pyro.core.svi import SVI
from bara_pyro.guides.contextual import ContextualGuide
from bara_pyro.methods.base import Method, MethodConfig, pair, register_method, setting
from bara_pyro.methods.recipes import OF_ELBO, Recipe, Training, alternating, default_svi
from bara_pyro.models.clora import CLoRA

# Weight of the KL besides pi_i: 1e-6 of the public code, divided by its 65 modules, for every backbone.
KL_WEIGHT = 1e-6 / 65
# Weight of the cross-entropy; the public code has 2 for WinoGrande-S, OpenBookQA, BoolQ, 4 for WinoGrande-M.
NLL_WEIGHT = 1.0
KL_LR = 0.01  # learning rate of the networks; published values are 0.01 to 0.02


class CLoRAConfig(MethodConfig):
    """Settings of C-LoRA."""

    recipe: Recipe = Field(
        "elbo",
        description="'elbo': minimise the negative ELBO (tempered by beta) with AdamW; 'reproduction': AdamW "
        "for A and B, plain gradient descent for the networks, and published weights",
    )
    prior_scale: float = setting(CLoRA, "prior_scale", "standard deviation of E's prior", gt=0)
    beta: Annotated[NonNegativeFloat, OF_ELBO] = setting(
        CLoRA, "beta", "with recipe=elbo: weight of KL(E), a sum over tokens; 1 is the exact ELBO"
    )


def _svi(model: CLoRA, guide: ContextualGuide, train: Training, config: CLoRAConfig) -> SVI:
    if config.recipe == "elbo":
        return default_svi(model, guide, train, config)
    # The optimiser holds A and B only: the published code creates it before the networks.
    optim = AdamW(model.parameters(), lr=train.peak_lr, weight_decay=train.weight_decay, eps=1e-6, fused=True)
    weights = {"kl_weight": KL_WEIGHT, "nll_weight": NLL_WEIGHT}
    return alternating(model, guide, optim, train, kl_lr=KL_LR, joint=True, **weights)


register_method(
    Method(
        "clora",
        "C-LoRA: y = W0 x + s B E(x) A x, an r x r matrix per token (NeurIPS 2025)",
        CLoRAConfig,
        pair(CLoRA, ContextualGuide),
        svi=_svi,
    )
)

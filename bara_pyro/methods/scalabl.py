"""ScalaBL: a posterior over r singular values per module (Samplawski et al., UAI 2025)."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat

from bara_pyro.core.optimizers import adamw
from bara_pyro.core.svi import SVI
from bara_pyro.guides.scalabl import ScalaBLGuide
from bara_pyro.methods.base import Method, MethodConfig, pair, register_method, setting
from bara_pyro.methods.recipes import OF_ELBO, Recipe, Training, alternating, default_svi
from bara_pyro.models.scalabl import ScalaBL

KL_LR = 0.2  # learning rate of the descent on the KL, as published


class ScalaBLConfig(MethodConfig):
    """Settings of ScalaBL."""

    recipe: Recipe = Field(
        "elbo",
        description="'elbo': minimise the negative ELBO with AdamW; 'reproduction': AdamW on the likelihood, "
        "then descent on the KL, with the public code's accidental shift of the prior",
    )
    kl: Literal["q||p", "p||q"] = setting(
        ScalaBLGuide, "kl", "direction of the KL; 'p||q' is the public code's, which gives no bound"
    )
    beta: Annotated[NonNegativeFloat, OF_ELBO] = setting(
        ScalaBL, "beta", "with recipe=elbo: weight of the KL; 1 is the exact ELBO"
    )


def _svi(model: ScalaBL, guide: ScalaBLGuide, train: Training, config: ScalaBLConfig) -> SVI:
    if config.recipe == "elbo":
        return default_svi(model, guide, train, config)
    optim = adamw(model, guide, train.peak_lr, weight_decay=train.weight_decay)
    return alternating(model, guide, optim, train, kl_lr=KL_LR)


register_method(
    Method(
        "scalabl",
        "ScalaBL: y = W0 x + s B diag(s) V x, random singular values (UAI 2025)",
        ScalaBLConfig,
        pair(ScalaBL, ScalaBLGuide, lambda config: {"shifted_prior": config.recipe == "reproduction"}),
        svi=_svi,
    )
)

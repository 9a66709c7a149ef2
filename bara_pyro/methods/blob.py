"""BLoB: Bayesian LoRA by backpropagation (Wang et al., NeurIPS 2024, arXiv 2406.11675)."""

from functools import partial
from typing import Annotated

from pydantic import Field, NonNegativeFloat

from bara_pyro.core.optimizers import adamw
from bara_pyro.core.svi import SVI
from bara_pyro.guides.normal import NormalGuide
from bara_pyro.methods.base import Method, MethodConfig, pair, register_method, setting
from bara_pyro.methods.recipes import OF_ELBO, Recipe, Training, alternating, default_svi
from bara_pyro.models.gaussian_lora import GaussianLoRA

KL_LR = 0.01  # learning rate of the descent on the KL, as published


class BLoBConfig(MethodConfig):
    """Settings of BLoB."""

    recipe: Recipe = Field(
        "elbo",
        description="'elbo': minimise the negative ELBO with AdamW; 'reproduction': the published scheme",
    )
    prior_scale: float = Field(0.2, gt=0, description="standard deviation of A's prior")
    beta: Annotated[NonNegativeFloat, OF_ELBO] = setting(
        GaussianLoRA, "beta", "with recipe=elbo: weight of KL(A); 1 is the exact ELBO"
    )


def blob_svi(model: GaussianLoRA, guide: NormalGuide, train: Training, config: BLoBConfig) -> SVI:
    """Return the SVI of the chosen recipe."""
    if config.recipe == "elbo":
        return default_svi(model, guide, train, config)
    optim = adamw(model, guide, train.peak_lr, weight_decay=train.weight_decay)
    # G follows SGD on the likelihood as well: the published optimiser was built before G existed.
    scales = {id(p) for p in guide.parameters()}
    for group in optim.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in scales]
    return alternating(model, guide, optim, train, kl_lr=KL_LR)


register_method(
    Method(
        "blob",
        "BLoB: Gaussian A, flipout (arXiv 2406.11675)",
        BLoBConfig,
        pair(partial(GaussianLoRA, random="A", flipout=True), NormalGuide),
        svi=blob_svi,
        peft=True,
    )
)

"""FVAE-LoRA: a factorised variational autoencoder of each layer's input (arXiv 2510.19640)."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat

from bara_pyro.core.optimizers import adamw
from bara_pyro.core.svi import SVI
from bara_pyro.guides.fvae import FVAEGuide
from bara_pyro.methods.base import Method, MethodConfig, pair, register_method, setting
from bara_pyro.methods.recipes import OF_ELBO, Recipe, Training, common, default_svi
from bara_pyro.models.fvae import FVAE, Weights

PUBLISHED_EPS = 1e-8  # Adam's epsilon in the official script
CE_WEIGHT = 1000.0  # weight of the cross-entropy in the official script; the other parts have weight 1


class FVAEConfig(MethodConfig):
    """Settings of FVAE-LoRA.

    With 'reproduction' the loss per row is that of the official code, divided by its CE weight `w` = 1000:

        CE + 1 / (w L) sum_l [ -log p(x | z) + mean((z2 - m)^2) - mean(z1^2) + KL(q1 || N(0, I)) ]

    L is the number of modules. CE is a mean over rows. `-log p` is summed over the entries of x and KL over
    the r latents; then both are averaged over rows and tokens. The two squares are means over rows, tokens
    and latents. There is no KL(q2 || p2). As in the official code, padding tokens count and the gradient of
    the reconstruction target reaches the layers below.
    """

    recipe: Recipe = Field(
        "elbo", description="'elbo': the ELBO, tempered by beta; 'reproduction': the official code's loss"
    )
    beta: Annotated[NonNegativeFloat, OF_ELBO] = setting(
        Weights, "kl_z1", "with recipe=elbo: weight of the autoencoders; 1 is the exact ELBO"
    )


def _weights(config: FVAEConfig) -> Weights:
    if config.recipe == "elbo":
        return Weights(config.beta, config.beta, config.beta)
    share = 1 / CE_WEIGHT
    return Weights(
        kl_z1=share,
        kl_z2=0.0,
        reconstruction=share,
        spread=share,
        pull=share,
        averaged=True,
        padding=True,
        detach=False,
    )


def _svi(model: FVAE, guide: FVAEGuide, train: Training, config: FVAEConfig) -> SVI:
    """Return one AdamW on the loss; 'reproduction' divides its epsilon by the same weight as the loss."""
    if config.recipe == "elbo":
        return default_svi(model, guide, train, config)
    optim = adamw(
        model,
        guide,
        train.peak_lr,
        local_lr_scale=train.local_lr_scale,
        weight_decay=train.weight_decay,
        eps=PUBLISHED_EPS / CE_WEIGHT,
    )
    return SVI(model, guide, optim, **common(optim, train))


register_method(
    Method(
        "fvae",
        "FVAE-LoRA: an encoder instead of A (arXiv 2510.19640)",
        FVAEConfig,
        pair(FVAE, FVAEGuide, lambda config: {"weights": _weights(config)}),
        svi=_svi,
    )
)

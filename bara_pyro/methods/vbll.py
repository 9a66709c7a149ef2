"""LoRA with a variational Bayesian last layer (Harrison et al., ICLR 2024, arXiv 2404.11599)."""

from pydantic import NonNegativeFloat
from torch.optim import Optimizer

from bara_pyro.core.optimizers import adamw
from bara_pyro.core.svi import SVI, SVIOptions
from bara_pyro.guides.vbll import VBLLGuide
from bara_pyro.methods.base import Fit, Method, MethodConfig, pair, register_method, setting
from bara_pyro.methods.jensen import JensenELBO
from bara_pyro.methods.recipes import Training, common
from bara_pyro.models.vbll import VBLL


class VBLLConfig(MethodConfig):
    """Settings of a Bayesian last layer."""

    answers: int = setting(VBLL, "answers", "largest number of answers of a task", ge=2)
    prior_scale: float = setting(
        VBLL, "prior_scale", "standard deviation of an answer's logit under the prior, nats", gt=0
    )
    beta: NonNegativeFloat = setting(VBLL, "beta", "weight of the KL; 1 is the exact ELBO")


def with_jensen(optim: Optimizer, train: Training) -> SVIOptions:
    """Return the arguments of `SVI` that the section `train` sets, with the published bound as the loss."""
    return common(optim, train) | {"loss": JensenELBO(sampled_kl=train.sampled_kl)}


def vbll_svi(model: VBLL, guide: VBLLGuide, train: Training, config: VBLLConfig) -> SVI:
    """Return an SVI with one AdamW on the published bound."""
    optim = adamw(model, guide, train.lr, weight_decay=train.weight_decay)
    return SVI(model, guide, optim, **with_jensen(optim, train))


def keep_tokens(fit: Fit[VBLL, VBLLGuide, VBLLConfig]) -> dict[str, float]:
    """Store the tokens of the trained rows; return the width of their posterior in units of the prior."""
    fit.model.set_tokens(fit.answer_ids)
    trained = fit.guide.scale_tril()[: len(fit.answer_ids)].detach()
    return {"last_layer_width": float(trained.square().sum(-1).mean().sqrt()) / fit.model.prior_scale}


register_method(
    Method(
        "vbll",
        "LoRA with a variational Bayesian last layer, a full covariance per answer (arXiv 2404.11599)",
        VBLLConfig,
        pair(VBLL, VBLLGuide),
        svi=vbll_svi,
        finish=keep_tokens,
    )
)

"""LoRA with a variational Bayesian last layer (Harrison et al., ICLR 2024, arXiv 2404.11599).

The bound is in closed form, from Jensen's inequality instead of draws. For logits `z_k = mu_k + w_k . phi`
with posteriors w_k ~ Normal(m_k, S_k) the expected log-likelihood is

    E[z_y] - E[log sum_k exp z_k]  >=  mean_y - log sum_k exp(mean_k + v_k / 2)

with `mean_k = mu_k + m_k . phi` and `v_k = phi^T S_k phi`, because the logarithm is concave and the mean of a
log-normal variable is known. This is the bound for the discriminative classifier of Harrison, Willes and
Snoek (ICLR 2024, arXiv 2404.11599).
"""

from dataclasses import dataclass
from typing import cast

import torch
from pydantic import NonNegativeFloat
from pyro.distributions import TorchDistribution
from torch import Tensor

from bara_pyro.core.distributions.normal import DenseNormal
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import LIKELIHOOD
from bara_pyro.core.observing import last_states
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.svi import SVI
from bara_pyro.core.terms import ElboTerms
from bara_pyro.data.types import Batch
from bara_pyro.guides.vbll import VBLLGuide
from bara_pyro.methods.base import Fit, Method, MethodConfig, pair, register_method, setting
from bara_pyro.methods.recipes import Training, default_svi
from bara_pyro.models.vbll import LAST, VBLL


@dataclass(frozen=True)
class GaussianLogits:
    """Replaces a categorical distribution with Gaussian logits, `... x C`; `log_prob` is the Jensen bound."""

    mean: Tensor
    variance: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        """Return `mean_y - logsumexp(mean + variance / 2)` for classes y, long, `...`."""
        chosen = self.mean.gather(-1, value.unsqueeze(-1)).squeeze(-1)
        return chosen - (self.mean + self.variance / 2).logsumexp(-1)


def gaussian_logits(
    model: VBLL, posterior: DenseNormal, hidden: Tensor, answer_ids: Tensor
) -> GaussianLogits:
    """Return the distribution of a batch's logits under a posterior of the K rows, of event shape `d`.

    `hidden` are the last hidden states of the last token, `B x 1 x d`; `answer_ids` are long, `C`.
    """
    places = model.places(answer_ids)
    mean = model.logits([posterior.loc[places]], hidden, answer_ids)
    with torch.autocast(hidden.device.type, enabled=False):
        phi = model.features(hidden).squeeze(-2)
        spread = phi @ posterior.scale_tril[places]  # C x B x d
    return GaussianLogits(mean, spread.square().sum(-1).T.unsqueeze(-2))


class JensenELBO(MeanFieldELBO):
    """The negative ELBO of a `VBLL`, with Jensen's bound instead of a draw of the rows."""

    def terms(self, model: AdaptedLM, guide: SiteGuide, batch: Batch) -> ElboTerms:
        """Evaluate the bound with one forward pass of the language model; see `MeanFieldELBO.terms`."""
        program = cast(VBLL, model)
        with last_states(program) as states:
            model_trace, guide_trace = guide.run(batch)
        if LIKELIHOOD not in guide_trace.nodes:  # without labels, `_terms` raises below
            posterior = cast(DenseNormal, guide_trace.nodes[LAST]["fn"])
            distribution = gaussian_logits(program, posterior, states[0].unsqueeze(-2), batch.answer_ids)
            model_trace.nodes[LIKELIHOOD]["fn"] = cast(TorchDistribution, distribution)
        return self._terms(model_trace, guide_trace)


class VBLLConfig(MethodConfig):
    """Settings of a Bayesian last layer."""

    answers: int = setting(VBLL, "answers", "largest number of answers of a task", ge=2)
    prior_scale: float = setting(
        VBLL, "prior_scale", "standard deviation of an answer's logit under the prior, nats", gt=0
    )
    beta: NonNegativeFloat = setting(VBLL, "beta", "weight of the KL; 1 is the exact ELBO")


def vbll_svi(
    model: VBLL, guide: VBLLGuide, train: Training, config: VBLLConfig, kind: type[SVI] = SVI
) -> SVI:
    """Return an SVI with one AdamW on the published bound."""
    svi = default_svi(model, guide, train, config, kind=kind)
    svi.elbo = JensenELBO(sampled_kl=train.sampled_kl)
    return svi


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

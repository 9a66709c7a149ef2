"""The predictor that draws Phi anew for every answer: fit of its posterior alone, bound and true risk."""

import math
from typing import cast

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import kl_divergence
from torch.optim import AdamW

from bara_pyro.core.distributions import MeanWeibull
from bara_pyro.core.distributions.weibull import EULER
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.noise import seeded
from bara_pyro.core.sites import module_key
from bara_pyro.core.svi import linear_schedule
from bara_pyro.data import EncodedSplit, training_batches
from bara_pyro.errors import TrainingError
from bara_pyro.extras.bounds.pac_bayes import LOSSES, GibbsBound, gibbs_bound
from bara_pyro.models.bara import PHI, BaRA
from bara_pyro.runs.system import System

FIT_RATE, FIT_BATCH = 0.003, 8
DELTA, DRAWS_DELTA = 0.045, 0.005
CAP = math.log(100)  # largest loss of the smoothed NLL, nats


def raw_phi(guide: SiteGuide) -> Tensor:
    """Return the one parameter that q(Phi) has."""
    return guide.sites[module_key(PHI)].weight


def posterior(guide: SiteGuide) -> MeanWeibull:
    """Return q(Phi), `modules x r`, in float64."""
    distribution = guide.get_posterior(PHI, cast(BaRA, guide.model).phi_prior).base_dist
    return MeanWeibull(distribution.mean.double(), distribution.kappa.double(), validate_args=False)


def weibull_kl(q: MeanWeibull, p: MeanWeibull) -> Tensor:
    r"""Return KL(q || p) of two Weibull distributions in nats, entry by entry.

    With t = scale E^kappa, E ~ Exp(1), under q: log t has mean log(scale) - g kappa, g Euler's number, and
    (t / scale_p)^(1 / kappa_p) has mean exp(d / kappa_p) Gamma(1 + kappa_q / kappa_p), where d is the
    difference of the log scales; the rest is linear in these (Bauckhage 2013, arXiv 1310.3713).
    """
    ratio, shift = q.kappa / p.kappa, (q.log_scale - p.log_scale) / p.kappa
    return EULER * (ratio - 1) - ratio.log() - shift - 1 + (shift + torch.lgamma(1 + ratio)).exp()


def divergence(q: MeanWeibull, p: TorchDistribution) -> Tensor:
    """Return KL(q(Phi) || p(Phi)) in nats, of the model's prior or of an earlier posterior."""
    return (weibull_kl(q, p) if isinstance(p, MeanWeibull) else kl_divergence(q, p)).sum()


def fit_phi(system: System, rows: EncodedSplit, prior: TorchDistribution, steps: int, seed: int) -> None:
    """Go on fitting q(Phi), and nothing else, to n rows: mean NLL + KL(q(Phi) || prior) / n.

    The prior is not the model's own where it is an earlier posterior; a step is of `FIT_BATCH` rows.

    Raises:
        TrainingError: the loss is not finite.
    """
    phi, elbo = raw_phi(system.guide), MeanFieldELBO()
    optim = AdamW([phi], lr=FIT_RATE, weight_decay=0.0)
    schedule = linear_schedule(optim, steps)
    with seeded(system.model.backbone.device, seed):
        for step in range(steps):
            batch = rows.batch(training_batches(len(rows), FIT_BATCH, seed, step), system.answer_ids)
            terms = elbo.terms(system.model, system.guide, batch.to(system.backbone.device))
            loss = terms.nll / system.model.num_data + divergence(posterior(system.guide), prior) / len(rows)
            if not loss.isfinite():
                raise TrainingError(f"The loss of Φ is {loss.item()} at step {step + 1}: lower FIT_RATE.")
            (phi.grad,) = torch.autograd.grad(loss, [phi])
            optim.step()
            schedule.step()


def bound_of(draws: Tensor, labels: Tensor, kl: float, loss: str) -> GibbsBound:
    """Return the PAC-Bayes bound from draws of `gibbs_draws`."""
    return gibbs_bound(
        draws, labels, kl, loss=loss, loss_cap=CAP, delta=DELTA, draws_delta=DRAWS_DELTA, shared=False
    )


def risk(draws: Tensor, truth: Tensor, loss: str) -> dict[str, float]:
    """Return the expected loss of a draw under the true answer probabilities, `mean` and standard `error`.

    In units of the loss, a key of `LOSSES`; draws are log-probabilities, `S x n x C`, the truth is `n x C`.
    """
    probs, top, classes = draws.exp().clamp(max=1.0), draws.argmax(-1), draws.shape[-1]
    values = [LOSSES[loss].values(probs[..., c], top == c, classes, CAP) for c in range(classes)]
    scale = CAP if LOSSES[loss].capped else 1.0
    by_row = scale * (torch.stack(values, dim=-1) * truth).sum(-1).mean(0)
    return {"mean": float(by_row.mean()), "error": float(by_row.std() / len(by_row) ** 0.5)}

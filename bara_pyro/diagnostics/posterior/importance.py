"""Importance weights of a guide's draws: evidence, gap to the ELBO, and Pareto k.

    log w = log p(y, z) - log q(z),   ELBO = E_q[log w]  <=  log E_q[w] = log p(y)

The gap is KL(q || posterior). The estimate `log mean exp` of K weights is the importance-weighted bound of
Burda et al. (ICLR 2016), which lies between the ELBO and log p(y) in expectation. It is reliable if the
Pareto k of the largest weights is at most 0.7 (Vehtari et al., JMLR 2024). Above 1 the weights have no finite
mean.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.noise import noise_seed
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.arviz.compat import pareto_smoothed
from bara_pyro.diagnostics.posterior.joint import check_target, draw_latents
from bara_pyro.errors import ConfigError, TrainingError

MIN_DRAWS = 2
GOOD_K = 0.7


@dataclass(frozen=True)
class ImportanceEstimate:
    """Estimates from S importance weights, in nats."""

    elbo: float  # mean of log w over separate draws, so that it can be compared with the evidence
    elbo_error: float  # standard error of `elbo`
    evidence: float  # log of the mean weight, an estimate of log p(y)
    # Standard error of `evidence`, by bootstrap over the draws; too small if `k_hat` is above 0.7.
    evidence_error: float
    k_hat: float  # Pareto k of the weights; infinite with fewer than about 25 draws
    effective: float  # effective sample size, (sum w)^2 / sum w^2, from 1 to S
    log_weights: Tensor  # float64, `S`: log-weights of the evidence

    @property
    def gap(self) -> float:
        """Evidence minus ELBO, an estimate of KL(q || posterior) in nats; 0 is best."""
        return self.evidence - self.elbo

    @property
    def reliable(self) -> bool:
        """Whether the Pareto k is at most 0.7."""
        return self.k_hat <= GOOD_K


def log_weights(
    model: AdaptedLM, guide: SiteGuide, batch: Batch, *, samples: int = 1000, seed: int = 0
) -> Tensor:
    """Return log p(y, z) - log q(z) for draws of all latents from the guide (float64, `S`, nats).

    Args:
        model: the program, with `num_data` equal to the number of rows and all KL weights 1.
        guide: its fitted guide, which must have a density.
        batch: the whole labelled data set.
        samples: number S of draws.
        seed: seed of the draws.

    Raises:
        ConfigError: a KL weight or `num_data` changes the posterior, or the guide is a point estimate.
        DataError: the rows have no labels.
        TrainingError: a weight is NaN or infinite.
    """
    check_target(model, batch)
    if not guide.stochastic:
        raise ConfigError(
            f"{type(guide).__name__} is a point estimate and has no density: choose another guide for "
            "importance weights."
        )
    drawn = draw_latents(model, guide, batch.to(model.backbone.device), samples, seed)
    log_weight = drawn.log_prior + drawn.log_likelihood - drawn.log_posterior
    bad = int((log_weight.isnan() | (log_weight == math.inf)).sum())
    if bad:
        raise TrainingError(
            f"{bad} of {len(log_weight)} importance weights are not finite, for example because gates "
            "underflow: choose a less sparse prior."
        )
    return log_weight


def importance_estimate(
    model: AdaptedLM, guide: SiteGuide, batch: Batch, *, samples: int = 1000, seed: int = 0
) -> ImportanceEstimate:
    """Estimate ELBO and evidence with S draws each, and the Pareto k of the weights.

    Arguments and errors are those of `log_weights`.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.posterior.importance import importance_estimate
        >>> backbone, task = bp.load_backbone("microworld"), bp.load_task("micro-wgs")
        >>> answers = bp.answer_token_ids(backbone.tokenizer, task.labels)
        >>> batch = bp.encode(task.train[:4], backbone.tokenizer).batch(range(4), answers)
        >>> model = bp.models.BaRA(backbone, num_data=4, latent="phi", r=2, target_modules=["lm_head"])
        >>> found = importance_estimate(model, bp.guides.WeibullGuide(model), batch, samples=50)
        >>> found.log_weights.shape, found.gap >= -4 * found.elbo_error  # of evidence and ELBO, nats
        (torch.Size([50]), True)
    """
    weights, fresh = (
        log_weights(model, guide, batch, samples=samples, seed=noise_seed(seed, key))
        for key in ("evidence", "elbo")
    )
    return summarise(weights, fresh, seed=seed)


def summarise(
    weights: Tensor, fresh: Tensor | None = None, *, resamples: int = 500, seed: int = 0
) -> ImportanceEstimate:
    """Return the estimates from log-weights, float64, `S`, nats; a `ConfigError` for fewer than two draws.

    The ELBO is from `fresh` independent log-weights, or from the same ones.
    """
    if len(weights) < MIN_DRAWS:
        raise ConfigError(f"samples is {len(weights)}: give {MIN_DRAWS} or more for a standard error.")
    fresh = weights if fresh is None else fresh
    generator = torch.Generator().manual_seed(seed)
    again = [
        _log_mean(weights[torch.randint(len(weights), weights.shape, generator=generator)])
        for _ in range(resamples)
    ]
    return ImportanceEstimate(
        float(fresh.mean()),
        float(fresh.std()) / math.sqrt(len(fresh)),
        _log_mean(weights),
        float(torch.tensor(again, dtype=torch.float64).std()),
        pareto_smoothed(weights.numpy())[1],
        float((2 * weights.logsumexp(0) - (2 * weights).logsumexp(0)).exp()),
        weights,
    )


def _log_mean(weights: Tensor) -> float:
    """Return the log of the mean weight."""
    return float(weights.logsumexp(0)) - math.log(len(weights))

"""Importance weights of a guide's draws: the evidence, the gap that the ELBO leaves, and Pareto's k.

    log w = log p(y, z) - log q(z),   ELBO = E_q[log w]  <=  log E_q[w] = log p(y)

The gap is KL(q || posterior). The estimate `log mean exp` of K weights is the importance-weighted bound of
Burda et al. (ICLR 2016): between the ELBO and log p(y) in expectation. Pareto's k of the largest weights
(Vehtari et al., JMLR 2024) says whether it can be relied on: up to 0.7; above 1 the weights have no mean.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.noise import noise_seed
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.arviz.compat import pareto_k
from bara_pyro.diagnostics.posterior.joint import JointDraws, check_target, draw_latents
from bara_pyro.errors import ConfigError, TrainingError

MIN_DRAWS = 2
GOOD_K = 0.7


@dataclass(frozen=True)
class ImportanceEstimate:
    """What S importance weights say, in nats."""

    elbo: float  # mean of log w, of draws of its own: comparing it with the evidence is no tautology
    elbo_error: float  # its standard error
    evidence: float  # log of the mean weight: the estimate of log p(y)
    evidence_error: (
        float  # its standard error, by bootstrap over the draws; too small where `k_hat` is above 0.7
    )
    k_hat: float  # Pareto's k of the weights; infinite with fewer than some 25 draws
    effective: float  # effective sample size, (sum w)^2 / sum w^2, from 1 to S
    log_weights: Tensor  # float64, `S`: those behind the evidence

    @property
    def gap(self) -> float:
        """Evidence minus ELBO: the estimate of KL(q || posterior), nats."""
        return self.evidence - self.elbo

    @property
    def reliable(self) -> bool:
        """Whether Pareto's k is at most 0.7."""
        return self.k_hat <= GOOD_K

    def bounded_by(self, evidence: float | None = None) -> bool:
        """Return whether the ELBO is not above the evidence, up to three standard errors.

        A bound above the evidence is a mistake in a density, a KL or a weight, never in the guide's fit. The
        evidence (nats) may be known from elsewhere; otherwise it is that of the weights.
        """
        if self.elbo == -math.inf:  # a draw that the prior excludes: below any evidence, of unknown error
            return True
        if evidence is not None:
            return self.elbo <= evidence + 3 * self.elbo_error
        return self.elbo <= self.evidence + 3 * math.hypot(self.elbo_error, self.evidence_error)


def log_weights(
    model: AdaptedLM, guide: SiteGuide, batch: Batch, *, samples: int = 1000, seed: int = 0
) -> Tensor:
    """Return log p(y, z) - log q(z) of draws of all latents from the guide, float64, `S`, nats.

    Args:
        model: the program, `num_data` the number of rows and all KL weights 1.
        guide: its fitted guide, which has a density.
        batch: the whole labelled data set.
        samples: number S of draws.
        seed: of the draws.

    Raises:
        ConfigError: a weight or `num_data` that makes another posterior, or a guide that is a point.
        DataError: no labels.
        TrainingError: a weight is not a number or infinite.
    """
    weighable(model, guide, batch)
    return log_weight_of(draw_latents(model, guide, batch.to(model.backbone.device), samples, seed))


def weighable(model: AdaptedLM, guide: SiteGuide, batch: Batch) -> None:
    """Raise a `ConfigError` or `DataError` where draws of a guide cannot be weighed: see `log_weights`."""
    check_target(model, batch)
    if not guide.stochastic:
        raise ConfigError(
            f"{type(guide).__name__} puts all mass on a point, which has no density to weigh draws by: "
            "choose another guide."
        )


def log_weight_of(drawn: JointDraws) -> Tensor:
    """Return log p(y, z) - log q(z) of draws from a guide, float64, `S`, nats.

    Raises:
        TrainingError: a weight is not a number or infinite.
    """
    found = drawn.log_prior + drawn.log_likelihood - drawn.log_posterior
    bad = int((found.isnan() | (found == math.inf)).sum())
    if bad:
        raise TrainingError(
            f"{bad} of {len(found)} importance weights are not finite: a density of program or guide is 0 or "
            "infinite at a draw, as at gates that underflow, so choose a less sparse prior."
        )
    return found


def importance_estimate(
    model: AdaptedLM, guide: SiteGuide, batch: Batch, *, samples: int = 1000, seed: int = 0
) -> ImportanceEstimate:
    """Estimate ELBO and evidence by S draws each, and Pareto's k; arguments and errors of `log_weights`.

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
    """Return what log-weights say.

    Args:
        weights: float64, `S`, nats: those of the evidence.
        fresh: independent ones for the ELBO; the same if None.
        resamples: of the bootstrap.
        seed: of the resampling.

    Raises:
        ConfigError: fewer than two draws.
    """
    if len(weights) < MIN_DRAWS:
        raise ConfigError(f"samples={len(weights)} must be at least {MIN_DRAWS} for a standard error.")
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
        pareto_k(weights.numpy()),
        float((2 * weights.logsumexp(0) - (2 * weights).logsumexp(0)).exp()),
        weights,
    )


def _log_mean(weights: Tensor) -> float:
    """Return the log of the mean weight."""
    return float(weights.logsumexp(0)) - math.log(len(weights))

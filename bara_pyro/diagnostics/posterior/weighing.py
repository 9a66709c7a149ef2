"""Draws of the posterior out of draws of a guide: importance resampling with Pareto-smoothed weights.

A guide of independent factors is narrower than the posterior, and often near enough that weights

    w = p(y, z) / q(z)

mend what is missing. The largest are replaced by quantiles of the Pareto distribution of their tail (PSIS:
Vehtari et al., JMLR 2024), whose k says whether they can be relied on: up to 0.7. Weights are of all latents
of all rows together, so that this is for some tens of them, as
where there are few rows or global gates alone.
"""

from dataclasses import dataclass

import torch

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.noise import noise_seed
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.arviz.compat import pareto_smoothed
from bara_pyro.diagnostics.posterior.importance import GOOD_K, log_weight_of, weighable
from bara_pyro.diagnostics.posterior.joint import JointDraws, draw_latents
from bara_pyro.errors import ConfigError


@dataclass(frozen=True)
class Weighed:
    """Draws of the posterior, as far as the weights can be relied on.

    Attributes:
        draws: the L draws that were kept, some of them more than once.
        k_hat: Pareto's k of the weights.
        effective: effective number of candidates, from 1 to their number.
    """

    draws: JointDraws
    k_hat: float
    effective: float

    @property
    def reliable(self) -> bool:
        """Whether Pareto's k is at most 0.7."""
        return self.k_hat <= GOOD_K


def weighed_draws(
    model: AdaptedLM,
    guide: SiteGuide,
    batch: Batch,
    *,
    samples: int,
    candidates: int = 10_000,
    seed: int = 0,
) -> Weighed:
    """Draw candidates from a guide and keep `samples` of them, each with the probability of its weight.

    Args:
        model: the program, `num_data` the number of rows and all KL weights 1.
        guide: its fitted guide, which has a density.
        batch: the whole labelled data set.
        samples: number L of draws to keep, with replacement.
        candidates: number of draws that are weighed.
        seed: of candidates and choice.

    Raises:
        ConfigError: a weight or `num_data` that makes another posterior, a guide that is a point, or a
            number that is not positive.
        DataError: no labels.
        TrainingError: a weight is not a number or infinite.
    """
    if samples < 1:
        raise ConfigError(f"samples={samples} must be at least 1.")
    weighable(model, guide, batch)
    drawn = draw_latents(
        model, guide, batch.to(model.backbone.device), candidates, noise_seed(seed, "candidates")
    )
    logs, k_hat = pareto_smoothed(log_weight_of(drawn).numpy())
    weights = torch.from_numpy(logs).softmax(0)
    generator = torch.Generator().manual_seed(noise_seed(seed, "choice"))
    kept = torch.multinomial(weights, samples, replacement=True, generator=generator)
    return Weighed(drawn.at(kept), k_hat, float(1 / weights.square().sum()))

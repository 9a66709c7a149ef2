"""Importance resampling: draws of the posterior from draws of a guide, with Pareto-smoothed weights.

A guide of independent factors is narrower than the posterior, but often close enough to correct with weights

    w = p(y, z) / q(z)

The largest weights are replaced by quantiles of a Pareto distribution fitted to their tail (PSIS: Vehtari et
al., JMLR 2024). They are reliable up to a Pareto k of 0.7. The weights cover all latents of all rows
together, so the method works for some tens of latents: few rows, or only global gates.
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
    """Draws resampled by importance weights; they are draws of the posterior if the weights are reliable.

    Attributes:
        draws: the L kept draws, some of them repeated.
        k_hat: Pareto k of the weights.
        effective: effective number of candidates, from 1 to their number.
    """

    draws: JointDraws
    k_hat: float
    effective: float

    @property
    def reliable(self) -> bool:
        """Whether the Pareto k is at most 0.7."""
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
    """Return `samples` draws from a guide, resampled by their importance weights.

    Args:
        model: the program, with `num_data` equal to the number of rows and all KL weights 1.
        guide: its fitted guide, which must have a density.
        batch: the whole labelled data set.
        samples: number L of draws to keep, with replacement.
        candidates: number of draws to weight.
        seed: seed of candidates and choice.

    Raises:
        ConfigError: a KL weight or `num_data` changes the posterior, the guide is a point estimate, or a
            number is not positive.
        DataError: the rows have no labels.
        TrainingError: a weight is NaN or infinite.
    """
    if samples < 1:
        raise ConfigError(f"samples is {samples}: give 1 or more.")
    weighable(model, guide, batch)
    drawn = draw_latents(
        model, guide, batch.to(model.backbone.device), candidates, noise_seed(seed, "candidates")
    )
    logs, k_hat = pareto_smoothed(log_weight_of(drawn).numpy())
    weights = torch.from_numpy(logs).softmax(0)
    generator = torch.Generator().manual_seed(noise_seed(seed, "choice"))
    chosen = torch.multinomial(weights, samples, replacement=True, generator=generator)
    return Weighed(drawn.at(chosen), k_hat, float(1 / weights.square().sum()))

"""Leave-one-out cross-validation by importance sampling (PSIS-LOO).

**What it estimates.** PSIS-LOO (Vehtari, Gelman and Gabry 2017) estimates how well the posterior would
predict row i if it had not seen it. It gives every draw the weight 1 / p(y_i | draw), which removes row i
from a posterior *that was conditioned on it*. Use it only on training rows (`split="train"`). For other rows
the plain likelihood is already that of unseen data.

**Limits.** The draws come from the guide, not from the exact posterior, and the weights do not correct this.
They also act only on latent variables: the point estimates A and B have seen row i. The estimate is therefore
optimistic, and it does not exist for a method without posterior spread. If you have validation rows, prefer
their likelihood. `arviz.loo` and `arviz.compare` take the exported draws of training rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bara_pyro.diagnostics.arviz.compat import pareto_smoothed
from bara_pyro.errors import ConfigError


class NoSpreadError(ConfigError):
    """All draws are the same, so they cannot be reweighted."""


@dataclass(frozen=True)
class Loo:
    """Pareto-smoothed importance-sampling leave-one-out cross-validation (Vehtari et al. 2017) of n rows."""

    elpd: float  # expected log predictive density, summed over rows, nats; higher is better
    se: float  # standard error of `elpd` over rows, nats
    p: float  # effective number of parameters
    good_k: float  # largest Pareto k of a reliable row, `min(1 - 1/log10 S, 0.7)`
    pointwise: Tensor  # float64, `n`, nats: the terms of `elpd`
    pareto_k: Tensor  # float64, `n`; infinite with too few draws to fit the tail (below about 25)
    ids: tuple[str, ...]  # identifiers of the rows

    @property
    def unreliable(self) -> tuple[str, ...]:
        """Identifiers of the rows with a Pareto k above `good_k`."""
        return tuple(row for row, k in zip(self.ids, self.pareto_k.tolist(), strict=True) if k > self.good_k)


def loo_of(log_likelihood: Tensor, ids: Sequence[str], method: str) -> Loo:
    """Return the estimate of n training rows from their log-likelihoods in S draws, `S x n`, float64, nats.

    Raises:
        NoSpreadError: all draws are the same.
    """
    if not bool((log_likelihood.amax(0) > log_likelihood.amin(0)).any()):
        raise NoSpreadError(
            f"All draws of {method!r} are the same: PSIS-LOO reweights draws and needs a posterior with "
            "spread."
        )
    draws, rows = log_likelihood.shape
    smoothed, k = zip(*(pareto_smoothed(-row) for row in log_likelihood.T.numpy()), strict=True)
    weights = torch.from_numpy(np.stack(smoothed, axis=1)).log_softmax(0)
    pointwise = (weights + log_likelihood).logsumexp(0)
    seen = log_likelihood.logsumexp(0) - math.log(draws)
    return Loo(
        elpd=float(pointwise.sum()),
        se=float((rows * pointwise.var(correction=0)).sqrt()),
        p=float((seen - pointwise).sum()),
        good_k=min(1 - 1 / math.log10(draws), 0.7),
        pointwise=pointwise,
        pareto_k=torch.tensor(k, dtype=torch.float64),
        ids=tuple(ids),
    )

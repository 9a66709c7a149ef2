"""Leave-one-out cross-validation by importance sampling (PSIS-LOO).

**What it estimates.** PSIS-LOO (Vehtari, Gelman and Gabry 2017) estimates how well the posterior would
predict row i if it had not seen it. It gives every draw the weight 1 / p(y_i | draw), which removes row i
from a posterior *that was conditioned on it*. Use it only on training rows (`split="train"`). For other rows
the plain likelihood is already that of unseen data.

**Limits.** The draws come from the guide, not from the exact posterior, and the weights do not correct this.
They also act only on latent variables: the point estimates A and B have seen row i. The estimate is therefore
optimistic, and it does not exist for a method without posterior spread. If you have validation rows, prefer
their likelihood. `arviz.compare` ranks methods by exported draws of the same training rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bara_pyro.diagnostics.arviz.compat import Idata, inference_groups, pareto_smoothed
from bara_pyro.errors import ConfigError, DataError


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


def loo(data: Idata) -> Loo:
    """Return the PSIS-LOO estimate for exported draws of training rows, with the Pareto k of every row.

    Args:
        data: the result of `to_inference_data(system, split="train", ...)`.

    Raises:
        ConfigError: the rows are not from the training split, or all draws are the same (`NoSpreadError`).
        DataError: the rows have no labels.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.arviz.loo import loo
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=4, out="runs/first")
        >>> data = bp.to_inference_data(run, split="train", rows=4, samples=30, prior=False)
        >>> found = loo(data)
        >>> found.pareto_k.shape
        torch.Size([4])
    """
    split = data.attrs.get("split")
    if split != "train":
        raise ConfigError(
            f"The rows are from the split {split!r}, but PSIS-LOO is for training rows: export them with "
            "split='train', or use the plain likelihood."
        )
    groups = inference_groups(data)
    if "log_likelihood" not in groups:
        raise DataError("There is no group log_likelihood: export rows with known labels for PSIS-LOO.")
    y = groups["log_likelihood"]["y"].stack(sample=("chain", "draw")).transpose("sample", "obs")
    return loo_of(torch.tensor(y.values), list(map(str, y["obs"].values)), str(data.attrs.get("method")))


def loo_of(log_likelihood: Tensor, ids: Sequence[str], method: str) -> Loo:
    """Return `loo` of training rows from the log-likelihoods of independent draws, `S x n`, float64, nats.

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

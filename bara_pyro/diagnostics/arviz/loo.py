"""Leave-one-out cross-validation by importance sampling (PSIS-LOO), and method comparison based on it.

**What it estimates.** PSIS-LOO (Vehtari, Gelman and Gabry 2017) estimates how well the posterior would
predict row i if it had not seen it. It gives every draw the weight 1 / p(y_i | draw), which removes row i
from a posterior *that was conditioned on it*. Use it only on training rows (`split="train"`). For other rows
the plain likelihood is already that of unseen data.

**Limits.** The draws come from the guide, not from the exact posterior, and the weights do not correct this.
They also act only on latent variables: the point estimates A and B have seen row i. The estimate is therefore
optimistic, and it does not exist for a method without posterior spread. If you have validation rows, prefer
their likelihood.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray
from torch import Tensor

from bara_pyro.diagnostics.arviz.compat import (
    Idata,
    Loo,
    inference_groups,
    psis_loo,
    stacking_weights,
    standard_error,
)
from bara_pyro.diagnostics.arviz.groups import dataset
from bara_pyro.errors import ConfigError, DataError


class NoSpreadError(ConfigError):
    """All draws are the same, so they cannot be reweighted."""


@dataclass(frozen=True)
class Ranked:
    """A method in a comparison by PSIS-LOO; sums over rows, in nats."""

    method: str
    elpd: float  # expected log predictive density; higher is better
    se: float  # standard error of `elpd` over rows
    difference: float  # `elpd` of the best method minus that of this one
    difference_se: float  # standard error of the difference over rows
    p: float  # effective number of parameters
    weight: float  # stacking weight: in the mixture that predicts the left-out rows best
    unreliable: int  # number of rows with a Pareto k above the limit; more than a few invalidate the result


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
    return _spread_loo(groups["log_likelihood"], str(data.attrs.get("method")))


def loo_of(log_likelihood: Tensor, ids: Sequence[str], method: str) -> Loo:
    """Return `loo` of training rows from their log-likelihoods, `S x n`, nats.

    Raises:
        NoSpreadError: all draws are the same.
    """
    coords = {"chain": np.array([0]), "draw": np.arange(len(log_likelihood)), "obs": np.array(ids)}
    return _spread_loo(dataset("log_likelihood", {"y": log_likelihood}, coords), method)


def _spread_loo(log_likelihood: xarray.Dataset, method: str) -> Loo:
    y = log_likelihood["y"]
    if not float((y.max("draw") - y.min("draw")).max()) > 0:
        raise NoSpreadError(
            f"All draws of {method!r} are the same: PSIS-LOO reweights draws and needs a posterior with "
            "spread."
        )
    return psis_loo(log_likelihood)


def compare(methods: Mapping[str, Idata]) -> tuple[Ranked, ...]:
    """Rank methods by PSIS-LOO on the same training rows, best first.

    Args:
        methods: name of a method -> exported draws, as for `loo`.

    Raises:
        ConfigError: there are fewer than two methods, or `loo` rejects the draws of one.
        DataError: the methods have different rows.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.arviz.loo import compare
        >>> data = {}
        >>> for method in ("bara-gate", "bara"):
        ...     run = bp.train(task="micro-wgs", method=method, steps=2, limit=4, out=f"runs/{method}")
        ...     data[method] = bp.to_inference_data(run, split="train", rows=4, samples=30, prior=False)
        >>> ranked = compare(data)
        >>> sorted(one.method for one in ranked), ranked[0].difference  # 0 for the best
        (['bara', 'bara-gate'], 0.0)
    """
    if len(methods) < 2:
        raise ConfigError(f"There are {len(methods)} methods to compare: give two or more.")
    results = {name: loo(data) for name, data in methods.items()}
    first = next(iter(results))
    for name, result in results.items():
        if result.ids != results[first].ids:
            raise DataError(f"{first!r} and {name!r} have different rows: export both with the same rows.")
    weights = stacking_weights(results)
    best = max(results.values(), key=lambda result: result.elpd)
    rows = []
    for name, result in sorted(results.items(), key=lambda item: item[1].elpd, reverse=True):
        behind = best.pointwise - result.pointwise
        gap, error = float(behind.sum()), standard_error(behind)
        unreliable = len(result.unreliable)
        rows.append(Ranked(name, result.elpd, result.se, gap, error, result.p, weights[name], unreliable))
    return tuple(rows)

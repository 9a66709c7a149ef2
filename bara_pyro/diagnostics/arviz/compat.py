"""ArviZ before and after its version 1: everything that differs between the two, and nothing else.

Up to 0.23 results are an `arviz.InferenceData`, from 1.0 on an `xarray.DataTree`; groups are xarray datasets
in both. How plots differ stands in `bara_pyro.diagnostics.page.gate_plots`.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
import xarray
from torch import Tensor

from bara_pyro.errors import ConfigError
from bara_pyro.types import Fields

# What ArviZ warns of and `Loo.unreliable` says row by row; the second concerns a single row.
PSIS_WARNINGS = ("Estimated shape parameter of Pareto", "The point-wise LOO is the same")

Idata: TypeAlias = Any
"""What ArviZ keeps draws in: an `InferenceData` before version 1, a `DataTree` from it on."""


def arviz() -> ModuleType:
    """Return the module; imported when needed, because it takes a second and brings pyplot.

    On import it announces its own next version, which no user of ours can act on: that is not passed on.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return import_module("arviz")


def renewed() -> bool:
    """Return whether the ArviZ that is installed is 1.0 or later."""
    return int(arviz().__version__.split(".")[0]) >= 1


def container(groups: Mapping[str, xarray.Dataset], attributes: Fields) -> Idata:
    """Return groups and attributes as the installed ArviZ holds them."""
    if renewed():
        root = xarray.Dataset(attrs=dict(attributes))
        return xarray.DataTree.from_dict({"/": root, **groups})
    return arviz().InferenceData(attrs=dict(attributes), **groups)


def inference_groups(data: Idata) -> dict[str, xarray.Dataset]:
    """Return the groups of an `InferenceData` or a `DataTree`, whichever ArviZ made it."""
    if hasattr(data, "children"):
        return {name: child.to_dataset() for name, child in data.children.items()}
    return dict(data.items())


@dataclass(frozen=True)
class Loo:
    """Pareto-smoothed importance-sampling leave-one-out (Vehtari et al. 2017), of n rows."""

    elpd: float  # expected log predictive probability, the sum over the rows, nats
    se: float  # its standard error over rows, nats
    p: float  # effective number of parameters
    good_k: float  # the Pareto k up to which a row's estimate can be relied on; `min(1 - 1/log10 S, 0.7)`
    pointwise: Tensor  # float64, `n`, nats
    pareto_k: Tensor  # float64, `n`; infinite where the draws are too few to fit the tail (below some 25)
    ids: tuple[str, ...]  # of the rows
    # ArviZ's own result; None where ArviZ 1 refuses a row, for its draws are too few or all the same.
    raw: Idata = field(repr=False, compare=False)

    @property
    def unreliable(self) -> tuple[str, ...]:
        """The rows whose Pareto k is above `good_k`."""
        return tuple(row for row, k in zip(self.ids, self.pareto_k.tolist(), strict=True) if k > self.good_k)


def psis_loo(log_likelihood: xarray.Dataset) -> Loo:
    """Run ArviZ's PSIS-LOO on the variable `y`, `chain x draw x obs`, of independent draws."""
    if not renewed():
        return _psis_loo(log_likelihood)
    plain = _plain_loo(log_likelihood)
    # A row whose tail is too short or all the same stops ArviZ 1, and is left as it is before.
    fits = np.array([_has_tail(-row) for row in _by_row(log_likelihood).T])
    if not fits.any():
        return plain
    found = _psis_loo(log_likelihood.isel(obs=np.flatnonzero(fits)))
    if fits.all():
        return found
    pointwise, k = plain.pointwise.clone(), plain.pareto_k.clone()
    pointwise[torch.from_numpy(fits)], k[torch.from_numpy(fits)] = found.pointwise, found.pareto_k
    return replace(
        plain,
        elpd=float(pointwise.sum()),
        se=standard_error(pointwise),
        p=plain.p + float((plain.pointwise - pointwise).sum()),
        pointwise=pointwise,
        pareto_k=k,
    )


def pareto_k(log_weights: np.ndarray) -> float:
    """Return the Pareto k of the tail of some weights, `S`; infinite where they have no tail to fit."""
    return pareto_smoothed(log_weights)[1]


def pareto_smoothed(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Return log-weights, `S`, whose tail is smoothed (up to a constant), and its Pareto k.

    As they are, and infinity, where they have no tail to fit.
    """
    if not renewed():
        smoothed, k = arviz().psislw(log_weights)
        return smoothed, float(k)
    if not _has_tail(log_weights):
        return log_weights, math.inf
    # In another package now, and of log-likelihoods: it turns the sign round itself.
    smoothed, k = import_module("arviz_stats.base").array_stats.psislw(-log_weights)
    return smoothed, float(k)


def _has_tail(log_weights: np.ndarray) -> bool:
    """Return whether the tail that PSIS fits has five draws or more, and not all of one weight."""
    count = len(log_weights)
    tail = math.ceil(min(0.2 * count, 3 * count**0.5))
    largest = np.sort(log_weights)[count - tail :]
    return tail >= 5 and largest[-1] - largest[0] > np.finfo(float).tiny


def _by_row(log_likelihood: xarray.Dataset) -> np.ndarray:
    stacked = log_likelihood["y"].stack(sample=("chain", "draw")).transpose("sample", "obs")
    return np.asarray(stacked.values)


def _psis_loo(log_likelihood: xarray.Dataset) -> Loo:
    data = container({"log_likelihood": log_likelihood}, {})
    scale = {} if renewed() else {"scale": "log"}  # later the only one
    with warnings.catch_warnings():
        for message in PSIS_WARNINGS:
            warnings.filterwarnings("ignore", message=message, category=UserWarning)
        # Independent draws are all effective; without `reff` ArviZ would ask for a posterior group.
        raw = arviz().loo(data, pointwise=True, reff=1.0, **scale)
    names = ("elpd", "p", "elpd_i") if renewed() else ("elpd_loo", "p_loo", "loo_i")
    elpd, p, by_row = (raw[name] for name in names)
    pointwise = torch.as_tensor(by_row.values.copy())
    return Loo(
        float(elpd),
        standard_error(pointwise),
        float(p),
        float(raw["good_k"]),
        pointwise,
        torch.as_tensor(raw["pareto_k"].values.copy()),
        tuple(map(str, log_likelihood["obs"].values)),
        raw,
    )


def _plain_loo(log_likelihood: xarray.Dataset) -> Loo:
    """Return LOO with raw weights, which is what is left where there is no tail to fit."""
    values = torch.as_tensor(_by_row(log_likelihood).copy())
    count = math.log(len(values))
    pointwise = count - (-values).logsumexp(0)
    p = float((values.logsumexp(0) - count - pointwise).sum())
    ids = tuple(map(str, log_likelihood["obs"].values))
    good_k = min(1 - 1 / math.log10(max(len(values), 2)), 0.7)
    k = torch.full_like(pointwise, math.inf)
    return Loo(float(pointwise.sum()), standard_error(pointwise), p, good_k, pointwise, k, ids, None)


def standard_error(pointwise: Tensor) -> float:
    """Return the standard error of a sum over rows, by n: ArviZ 1 divides by n - 1."""
    return float((len(pointwise) * pointwise.var(correction=0)).sqrt())


def stacking_weights(results: Mapping[str, Loo]) -> dict[str, float]:
    """Return the weights of the mixture that predicts the left-out rows best (Yao et al. 2018)."""
    if any(result.raw is None for result in results.values()):
        raise ConfigError(
            "A comparison needs draws that differ on every row, and 21 of them or more: raise samples."
        )
    # The one column that all versions call the same; newer ones round the others.
    table = arviz().compare({name: result.raw for name, result in results.items()}, method="stacking")
    return {name: float(table["weight"][name]) for name in results}

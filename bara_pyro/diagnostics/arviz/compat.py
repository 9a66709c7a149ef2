"""Support for ArviZ before and after version 1.

Up to ArviZ 0.23 results are an `arviz.InferenceData`, from 1.0 on an `xarray.DataTree`. Groups are xarray
datasets in both. Differences in plots are handled in `bara_pyro.diagnostics.page.gate_plots`.
"""

import math
import warnings
from collections.abc import Mapping
from contextlib import suppress
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

# Warnings of ArviZ that `Loo.unreliable` reports row by row; the second occurs with a single row.
PSIS_WARNINGS = ("Estimated shape parameter of Pareto", "The point-wise LOO is the same")

Idata: TypeAlias = Any
"""ArviZ's container of draws: an `InferenceData` before version 1, a `DataTree` from then on."""


def arviz() -> ModuleType:
    """Import ArviZ when it is needed, because the import takes a second and loads pyplot.

    Its announcement of the next version is suppressed, because users cannot act on it.

    Raises:
        ConfigError: ArviZ cannot write to its cache folder.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with suppress(OSError):  # once a day it writes a file: two processes that do so disturb each other
            return import_module("arviz")
        try:
            return import_module("arviz")
        except OSError as error:
            raise ConfigError(
                f"ArviZ cannot write to its cache folder ({error}): set the environment variable "
                "XDG_CACHE_HOME to a folder that it can write to."
            ) from error


def renewed() -> bool:
    """Return whether the installed ArviZ is version 1.0 or later."""
    return int(arviz().__version__.split(".")[0]) >= 1


def container(groups: Mapping[str, xarray.Dataset], attributes: Fields) -> Idata:
    """Return groups and attributes in the container of the installed ArviZ."""
    if renewed():
        root = xarray.Dataset(attrs=dict(attributes))
        return xarray.DataTree.from_dict({"/": root, **groups})
    return arviz().InferenceData(attrs=dict(attributes), **groups)


def inference_groups(data: Idata) -> dict[str, xarray.Dataset]:
    """Return the groups of an `InferenceData` or a `DataTree`."""
    if hasattr(data, "children"):
        return {name: child.to_dataset() for name, child in data.children.items()}
    return dict(data.items())


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
    # ArviZ's own result; None if ArviZ 1 rejects a row because its draws are too few or all the same.
    raw: Idata = field(repr=False, compare=False)

    @property
    def unreliable(self) -> tuple[str, ...]:
        """Identifiers of the rows with a Pareto k above `good_k`."""
        return tuple(row for row, k in zip(self.ids, self.pareto_k.tolist(), strict=True) if k > self.good_k)


def psis_loo(log_likelihood: xarray.Dataset) -> Loo:
    """Run ArviZ's PSIS-LOO on the variable `y` (`chain x draw x obs`, nats) of independent draws."""
    if not renewed():
        return _psis_loo(log_likelihood)
    plain = _plain_loo(log_likelihood)
    # ArviZ 1 raises an error for rows with a short or constant tail: these keep their plain estimate.
    fits = np.array([_has_tail(-row) for row in _by_row(log_likelihood).T])
    if not fits.any():
        return plain
    fitted = _psis_loo(log_likelihood.isel(obs=np.flatnonzero(fits)))
    if fits.all():
        return fitted
    pointwise, k = plain.pointwise.clone(), plain.pareto_k.clone()
    pointwise[torch.from_numpy(fits)], k[torch.from_numpy(fits)] = fitted.pointwise, fitted.pareto_k
    return replace(
        plain,
        elpd=float(pointwise.sum()),
        se=standard_error(pointwise),
        p=plain.p + float((plain.pointwise - pointwise).sum()),
        pointwise=pointwise,
        pareto_k=k,
    )


def pareto_smoothed(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Return log-weights (`S`) with a smoothed tail, up to a constant, and their Pareto k.

    Without a tail to fit the weights are returned unchanged, with an infinite k.
    """
    if not renewed():
        smoothed, k = arviz().psislw(log_weights)
        return smoothed, float(k)
    if not _has_tail(log_weights):
        return log_weights, math.inf
    # ArviZ 1 has this in another package, for log-likelihoods: it flips the sign itself.
    smoothed, k = import_module("arviz_stats.base").array_stats.psislw(-log_weights)
    return smoothed, float(k)


def _has_tail(log_weights: np.ndarray) -> bool:
    """Return whether the tail that PSIS fits has five draws or more with different weights."""
    count = len(log_weights)
    tail = math.ceil(min(0.2 * count, 3 * count**0.5))
    largest = np.sort(log_weights)[count - tail :]
    return tail >= 5 and largest[-1] - largest[0] > np.finfo(float).tiny


def _by_row(log_likelihood: xarray.Dataset) -> np.ndarray:
    stacked = log_likelihood["y"].stack(sample=("chain", "draw")).transpose("sample", "obs")
    return np.asarray(stacked.values)


def _psis_loo(log_likelihood: xarray.Dataset) -> Loo:
    data = container({"log_likelihood": log_likelihood}, {})
    scale = {} if renewed() else {"scale": "log"}  # version 1 has no other scale
    with warnings.catch_warnings():
        for message in PSIS_WARNINGS:
            warnings.filterwarnings("ignore", message=message, category=UserWarning)
        # Independent draws are all effective; without `reff` ArviZ requires a posterior group.
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
    """Return LOO with unsmoothed weights, for draws without a tail to fit."""
    values = torch.as_tensor(_by_row(log_likelihood).copy())
    count = math.log(len(values))
    pointwise = count - (-values).logsumexp(0)
    p = float((values.logsumexp(0) - count - pointwise).sum())
    ids = tuple(map(str, log_likelihood["obs"].values))
    good_k = min(1 - 1 / math.log10(max(len(values), 2)), 0.7)
    k = torch.full_like(pointwise, math.inf)
    return Loo(float(pointwise.sum()), standard_error(pointwise), p, good_k, pointwise, k, ids, None)


def standard_error(pointwise: Tensor) -> float:
    """Return the standard error of a sum over rows with variance by n (ArviZ 1 uses n - 1)."""
    return float((len(pointwise) * pointwise.var(correction=0)).sqrt())


def stacking_weights(results: Mapping[str, Loo]) -> dict[str, float]:
    """Return the stacking weights: the mixture that predicts left-out rows best (Yao et al. 2018)."""
    if any(result.raw is None for result in results.values()):
        raise ConfigError("A comparison needs 21 draws or more that differ on every row: raise samples.")
    # The only column with the same name in all versions; newer ones round the others.
    table = arviz().compare({name: result.raw for name, result in results.items()}, method="stacking")
    return {name: float(table["weight"][name]) for name in results}

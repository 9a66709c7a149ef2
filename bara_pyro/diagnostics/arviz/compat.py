"""Support for ArviZ before and after version 1.

Up to ArviZ 0.23 results are an `arviz.InferenceData`, from 1.0 on an `xarray.DataTree`. Groups are xarray
datasets in both. Differences in plots are handled in `bara_pyro.diagnostics.parts.draws`.
"""

import math
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import xarray

from bara_pyro.atomic import atomic_write
from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.types import Fields

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


ENGINE = "h5netcdf"


def write_netcdf(data: Idata, path: str | Path) -> Path:
    """Write the result of `to_inference_data` to a netCDF file, which ArviZ can also read.

    Returns:
        The path of the file.

    Raises:
        CheckpointError: the file cannot be written; an existing file is left untouched.
        ConfigError: h5netcdf is not installed.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.arviz.compat import write_netcdf
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=8, out="runs/first")
        >>> write_netcdf(bp.to_inference_data(run, rows=3, samples=4, prior=False), "posterior.nc")
        PosixPath('posterior.nc')
    """
    _engine()
    # HDF5 needs a path, so it overwrites the open, empty temporary file, which is then renamed.
    atomic_write(Path(path), lambda file: data.to_netcdf(file.name, engine=ENGINE))
    return Path(path)


def read_netcdf(path: str | Path) -> Idata:
    """Read a file of `write_netcdf` into memory.

    Raises:
        CheckpointError: the file is missing, truncated or not a netCDF file.
        ConfigError: h5netcdf is not installed.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.arviz.compat import read_netcdf, write_netcdf
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=8, out="runs/first")
        >>> data = bp.to_inference_data(run, rows=3, samples=4, prior=False)
        >>> again = read_netcdf(write_netcdf(data, "posterior.nc"))
        >>> bool((again["posterior"]["phi"] == data["posterior"]["phi"]).all())
        True
    """
    engine = _engine()
    try:
        with engine.File(path, "r") as file:
            names = list(file.groups)
        attributes = _load(path, "/").attrs
        groups = {name: _load(path, name) for name in names}
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"Cannot read {path} ({error}): give a file that write_netcdf wrote."
        ) from error
    return container(groups, attributes)


def _load(path: str | Path, group: str) -> xarray.Dataset:
    with xarray.open_dataset(path, group=group, engine=ENGINE) as lazy:
        return lazy.load()


def _engine() -> Any:
    try:
        return import_module(ENGINE)
    except ImportError as error:
        raise ConfigError(
            "netCDF files need h5netcdf, which is not installed: run pip install h5netcdf."
        ) from error

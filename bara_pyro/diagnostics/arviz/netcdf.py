"""Write exported draws to a netCDF file and read them back."""

from importlib import import_module
from pathlib import Path
from typing import Any

import xarray

from bara_pyro.atomic import atomic_write
from bara_pyro.diagnostics.arviz.compat import Idata, container
from bara_pyro.errors import CheckpointError, ConfigError

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
        >>> from bara_pyro.diagnostics.arviz.netcdf import write_netcdf
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
        >>> from bara_pyro.diagnostics.arviz.netcdf import read_netcdf, write_netcdf
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

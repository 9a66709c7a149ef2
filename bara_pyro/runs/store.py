"""Files of a run: safetensors and JSON, written atomically, never pickle."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bara_pyro.errors import CheckpointError
from bara_pyro.runs.atomic import atomic_write
from bara_pyro.types import Json
from bara_pyro.untrusted.files import bounded_json, why
from bara_pyro.untrusted.schemas import SCHEMA, TensorsFile, checked, later_schema
from bara_pyro.untrusted.tensors import check_tensors

OURS = "bara_pyro"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Json) -> None:
    """Write a safetensors file atomically, with JSON metadata and the schema version.

    The same content is the same bytes: safetensors orders several entries of its header at random, so all
    metadata are one entry.
    """
    data = {key: value.detach().contiguous().cpu() for key, value in tensors.items()}
    header = {OURS: json.dumps({"schema": SCHEMA, **metadata}, sort_keys=True)}
    atomic_write(path, lambda file: file.write(save(data, header)))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Json]:
    """Read a file of `write_tensors`: tensors on the CPU, metadata decoded.

    Raises:
        CheckpointError: missing, truncated, not ours, or of another schema version.
    """
    metadata = read_metadata(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, metadata  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise _unreadable(path, error) from error


def read_metadata(path: Path) -> Json:
    """Return the metadata of a file of `write_tensors`, of which no tensor is read.

    Raises:
        CheckpointError: missing, truncated, not ours, or of another schema version.
    """
    check_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
        metadata = bounded_json(header.get(OURS, "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise _unreadable(path, error) from error
    if OURS not in header or not isinstance(metadata, dict):
        raise CheckpointError(f"{path} was not written by {OURS}: give the file of a run of ours.")
    check_schema(metadata, path)
    checked(metadata, TensorsFile, path)
    return metadata


def check_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the tensors in a file, none of which is read.

    Raises:
        CheckpointError: missing, truncated, or no safetensors.
    """
    try:
        return {name: tuple(header.shape) for name, header in check_tensors(path).items()}
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"Cannot read {path} ({why(error)}): the file is missing, truncated or was not written by bara_pyro; "
        "train again or copy it anew."
    )


def check_schema(stored: Json, path: Path) -> None:
    """Raise `CheckpointError` where a file has another schema than this version reads."""
    if (found := stored.get("schema")) != SCHEMA:
        raise later_schema(found, path)


def load_parameters(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors into parameters of the same names, which must match exactly in name and shape.

    Raises:
        CheckpointError: a name is missing or extra, a shape or type differs, or a value is not finite;
            nothing has been copied then.
    """
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or extra:
        name = (missing or extra)[0]
        state = "lacks" if missing else "has an unknown"
        raise CheckpointError(
            f"{path} {state} {name!r}: it belongs to another method, rank, target list or backbone."
        )
    for name, value in own.items():
        given = tensors[name]
        if value.shape != given.shape:
            raise CheckpointError(
                f"{path}: {name!r} has shape {tuple(given.shape)}, the model needs {tuple(value.shape)}: it "
                "belongs to another rank or backbone."
            )
        if value.dtype != given.dtype:
            raise CheckpointError(
                f"{path}: {name!r} has values of type {given.dtype}, the model needs {value.dtype}: it was "
                "not written by this program."
            )
        # What is infinite until it is fitted, such as a radius, may still be.
        if not given.isfinite().all() and value.isfinite().all():
            raise CheckpointError(
                f"{path}: {name!r} holds values that are not finite: train again, or restore it from a copy."
            )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(tensors[name])

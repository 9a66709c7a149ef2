"""Read and write the safetensors files of a run."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bara_pyro.atomic import atomic_write
from bara_pyro.errors import CheckpointError
from bara_pyro.types import Json
from bara_pyro.untrusted.files import bounded_json, check_tensors, why
from bara_pyro.untrusted.schemas import SCHEMA, TensorsFile, checked, later_schema

OURS = "bara_pyro"
PEFT_PREFIX = "base_model.model."


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Json) -> None:
    """Write a safetensors file atomically, with JSON metadata and the schema version.

    The same content always gives the same bytes: safetensors writes several entries of metadata in random
    order, so all metadata are one entry.
    """
    data = {key: value.detach().contiguous().cpu() for key, value in tensors.items()}
    header = {OURS: json.dumps({"schema": SCHEMA, **metadata}, sort_keys=True)}
    atomic_write(path, lambda file: file.write(save(data, header)))


def peft_key(path: str, parameter: str) -> str:
    """Return PEFT's key of a module's tensor."""
    return f"{PEFT_PREFIX}{path}.{parameter}.weight"


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Json]:
    """Read a file of `write_tensors`: its tensors, on the CPU, and its metadata.

    Raises:
        CheckpointError: the file is missing, damaged, foreign, or of another schema version.
    """
    metadata = read_metadata(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, metadata  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise _unreadable(path, error) from error


def read_metadata(path: Path) -> Json:
    """Return the metadata of a file of `write_tensors` without its tensors; errors as `read_tensors`."""
    check_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
        metadata = bounded_json(header.get(OURS, "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise _unreadable(path, error) from error
    if OURS not in header or not isinstance(metadata, dict):
        raise CheckpointError(f"{path} was not written by {OURS}: give a file of one of its runs.")
    check_schema(metadata, path)
    checked(metadata, TensorsFile, path)
    return metadata


def check_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a file's tensors without reading them; errors as `read_metadata`."""
    try:
        return {name: tuple(header.shape) for name, header in check_tensors(path).items()}
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"Cannot read {path} ({why(error)}), which is missing, truncated or not written by bara_pyro: train "
        "again, or copy it again."
    )


def check_schema(stored: Json, path: Path) -> None:
    """Raise a `CheckpointError` if a file has another schema version than this package reads."""
    if (schema := stored.get("schema")) != SCHEMA:
        raise later_schema(schema, path)


def load_parameters(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors into the parameters of the same names; names and shapes must match exactly.

    Raises:
        CheckpointError: a name is missing or extra, a shape or dtype differs, or a value is not finite;
            nothing is copied then.
    """
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or extra:
        name = (missing or extra)[0]
        state = "lacks" if missing else "has an unknown"
        raise CheckpointError(
            f"{path} {state} {name!r}, so it belongs to another method, rank, target list or backbone: give "
            "the right file."
        )
    for name, value in own.items():
        stored = tensors[name]
        if value.shape != stored.shape:
            raise CheckpointError(
                f"{path}: {name!r} has shape {tuple(stored.shape)}, but the model needs "
                f"{tuple(value.shape)}: give the file of a run with this rank and backbone."
            )
        if value.dtype != stored.dtype:
            raise CheckpointError(
                f"{path}: {name!r} has dtype {stored.dtype}, but the model needs {value.dtype}: restore the "
                "file from a copy."
            )
        # Parameters that are infinite until they are fitted, such as a radius, may be infinite.
        if not stored.isfinite().all() and value.isfinite().all():
            raise CheckpointError(
                f"{path}: {name!r} holds values that are not finite: train again, or restore it from a copy."
            )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(tensors[name])

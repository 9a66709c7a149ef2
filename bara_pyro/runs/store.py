"""Files of a run: safetensors and JSON, written atomically, never pickle."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bara_pyro.errors import CheckpointError
from bara_pyro.runs.atomic import (  # noqa: F401 - whoever may import torch finds all of it here
    SCHEMA,
    atomic_write,
    read_json,
    read_jsonl,
    write_json,
    write_jsonl,
    write_text,
    writing,
)
from bara_pyro.types import Json

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
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            header = file.metadata() or {}
        metadata = json.loads(header.get(OURS, "{}"))
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"Cannot read {path} ({error}): the file is missing, truncated or was not written by bara_pyro; "
            "train again or copy it anew."
        ) from error
    if OURS not in header:
        raise CheckpointError(f"{path} was not written by {OURS}: give the file of a run of ours.")
    check_schema(metadata, path)
    return tensors, metadata


def check_schema(stored: Json, path: Path) -> None:
    """Raise `CheckpointError` where a file has another schema than this version reads."""
    if stored.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{path} has schema {stored.get('schema')}, this version reads {SCHEMA}: "
            "use the version of bara_pyro that wrote it."
        )


def load_parameters(module: torch.nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy tensors into a module whose parameters must match exactly in name and shape.

    Raises:
        CheckpointError: a name is missing or extra, or a shape differs; nothing has been copied then.
    """
    own = dict(module.named_parameters())
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or extra:
        name = (missing or extra)[0]
        state = "lacks" if missing else "has an unknown"
        raise CheckpointError(
            f"{path} {state} {name!r}: it belongs to another method, rank, target list or backbone."
        )
    for name, value in own.items():
        if value.shape != tensors[name].shape:
            raise CheckpointError(
                f"{path}: {name!r} has shape {tuple(tensors[name].shape)}, the model needs "
                f"{tuple(value.shape)}: it belongs to another rank or backbone."
            )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(tensors[name])

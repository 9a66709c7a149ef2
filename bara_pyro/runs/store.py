"""Read and write the safetensors files of a run, and checkpoints from which training continues exactly."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bara_pyro.atomic import atomic_write
from bara_pyro.core.svi import SVI
from bara_pyro.errors import CheckpointError
from bara_pyro.processes import ALONE, Ranks
from bara_pyro.runs.manifest import CHECKPOINT
from bara_pyro.types import Json
from bara_pyro.untrusted.files import bounded_json, check_tensors, why
from bara_pyro.untrusted.schemas import SCHEMA, TensorsFile, checked

OURS = "bara_pyro"
PEFT_PREFIX = "base_model.model."
# Raised when the restored state belongs to another optimiser, or to none.
UNFIT = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


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
    with _reading(path), safe_open(path, framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, metadata  # noqa: SIM118


def read_metadata(path: Path) -> Json:
    """Return the metadata of a file of `write_tensors` without its tensors; errors as `read_tensors`."""
    check_header(path)
    with _reading(path):
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
        metadata = bounded_json(header.get(OURS, "{}"))
    if OURS not in header or not isinstance(metadata, dict):
        raise CheckpointError(f"{path} was not written by {OURS}: give a file of one of its runs.")
    checked(metadata, TensorsFile, path)
    return metadata


def check_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a file's tensors without reading them; errors as `read_metadata`."""
    with _reading(path):
        return {name: tuple(header.shape) for name, header in check_tensors(path).items()}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(
            f"Cannot read {path} ({why(error)}), which is missing, truncated or not written by bara_pyro: "
            "train again, or copy it again."
        ) from error


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


def save_checkpoint(
    folder: Path, svi: SVI, step: int, identity: dict[str, str], ranks: Ranks = ALONE
) -> None:
    """Write parameters, optimiser, schedule and random states into one file, atomically.

    All processes must call this; the first one writes, with the random states of all. `identity` holds facts
    that a resumed run must share (configuration, backbone, rows), by name.
    """
    states = {"cpu": torch.get_rng_state()}
    if svi.model.backbone.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(svi.model.backbone.device)
    tensors: dict[str, Tensor] = {
        _rng_key(kind, rank): state
        for kind, tensors_of in states.items()
        for rank, state in enumerate(ranks.gather(tensors_of))
    }
    if not ranks.first:
        return
    for prefix, module in (("model", svi.model), ("guide", svi.guide)):
        tensors |= {f"{prefix}/{name}": value for name, value in module.named_parameters()}
    optim = svi.optim.state_dict()
    # Some optimisers keep tensors in their groups and plain numbers in their state (IVON).
    counters = {}
    for index, state in optim["state"].items():
        if isinstance(state, dict):
            tensors |= {f"optim/{index}/{key}": torch.as_tensor(value) for key, value in state.items()}
        else:
            counters[index] = state
    for number, group in enumerate(optim["param_groups"]):
        tensors |= {f"group/{number}/{key}": v for key, v in group.items() if isinstance(v, Tensor)}
    metadata = {
        "step": step,
        "identity": identity,
        "param_groups": [
            {key: value for key, value in group.items() if not isinstance(value, Tensor)}
            for group in optim["param_groups"]
        ],
        "counters": counters,
        "scheduler": None if svi.scheduler is None else _plain(svi.scheduler.state_dict()),
    }
    write_tensors(folder / CHECKPOINT, tensors, {**metadata, "digest": _digest(tensors, metadata)})


def load_checkpoint(folder: Path, svi: SVI, identity: dict[str, str], ranks: Ranks = ALONE) -> int:
    """Restore the state that `save_checkpoint` wrote and return its step, 0 without a checkpoint.

    A process whose rank was not saved keeps its random state. A file that is damaged, or of another
    configuration, backbone or set of rows, raises a `CheckpointError`.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return 0
    tensors, metadata = read_tensors(path)
    stored = metadata.get("identity")
    if stored is None or "step" not in metadata:
        raise CheckpointError(f"{path} is not a checkpoint of a training run: remove it and train again.")
    if metadata.pop("digest", None) != _digest(tensors, metadata):
        raise CheckpointError(f"{path} is damaged: remove it to train from the start, or restore it.")
    for name, value in identity.items():
        if stored.get(name) != value:
            raise CheckpointError(
                f"{path} was written with another {name} ({stored.get(name)}, now {value}): "
                "restore it, or choose another out (--out)."
            )
    load_parameters(dict(svi.model.named_parameters()), _under("model/", tensors), path)
    load_parameters(dict(svi.guide.named_parameters()), _under("guide/", tensors), path)
    try:
        _restore(svi, tensors, metadata, ranks)
    except UNFIT as error:
        raise CheckpointError(
            f"{path} does not fit the optimiser of this run ({str(error)[:80]}): remove it to train from the "
            "start, or restore it."
        ) from error
    return int(metadata["step"])


def _restore(svi: SVI, tensors: dict[str, Tensor], metadata: Json, ranks: Ranks) -> None:
    """Restore optimiser, schedule and random generators from a checkpoint, but none of the settings."""
    current = svi.optim.state_dict()
    plain = {key: value for key, value in current["state"].items() if not isinstance(value, dict)}
    state: dict[Any, Any] = dict(_alike(plain, metadata.get("counters", {})))
    for name, tensor in _under("optim/", tensors).items():
        index, key = name.split("/")
        state.setdefault(int(index), {})[key] = _fitting(tensor, svi, int(index))
    settings = [
        _moved(group, stored)
        for group, stored in zip(current["param_groups"], metadata["param_groups"], strict=True)
    ]
    for number, group in enumerate(settings):
        for key, value in group.items():
            if isinstance(value, Tensor):
                group[key] = tensors[f"group/{number}/{key}"].to(value.device).reshape(value.shape)
    svi.optim.load_state_dict({"state": state, "param_groups": settings})
    if svi.scheduler is not None:
        svi.scheduler.load_state_dict(_alike(_plain(svi.scheduler.state_dict()), metadata["scheduler"]))
    if (key := _rng_key("cpu", ranks.rank)) in tensors:
        torch.set_rng_state(tensors[key])
    if (key := _rng_key("cuda", ranks.rank)) in tensors:
        torch.cuda.set_rng_state(tensors[key], svi.model.backbone.device)


def _moved(current: Json, stored: Json) -> Json:
    """Return a parameter group with the stored learning rate; a `ValueError` if another setting differs."""
    for key, value in current.items():
        if key == "lr" or isinstance(value, Tensor) or key not in stored:
            continue
        if stored[key] != json.loads(json.dumps(value)):  # as it was written
            raise ValueError(f"its {key} is {str(stored[key])[:20]}")
    return {**current, "lr": _alike(current["lr"], stored["lr"])}


def _fitting(tensor: Tensor, svi: SVI, index: int) -> Tensor:
    """Return an optimiser's stored state of a parameter; a `ValueError` if it is impossible."""
    shape = [p.shape for group in svi.optim.param_groups for p in group["params"]][index]
    # Optimisers other than Adam may keep counts, or sums over rows.
    of_adam = tensor.is_floating_point() and tensor.shape in (shape, ())
    if isinstance(svi.optim, torch.optim.Adam) and not of_adam:
        raise ValueError(f"its state of parameter {index} is of shape {tuple(tensor.shape)}, {tensor.dtype}")
    if not tensor.isfinite().all() or (tensor.dim() == 0 and tensor < 0):
        raise ValueError(f"its state of parameter {index} is negative or not finite")
    return tensor


def _alike(current: Any, stored: Any) -> Any:
    """Return a stored value if it has the type and structure of the current one, else a `ValueError`."""
    if isinstance(current, dict) and isinstance(stored, dict):
        return {key: _alike(value, stored[str(key)]) for key, value in current.items()}
    if isinstance(current, list | tuple) and isinstance(stored, list) and len(current) == len(stored):
        return [_alike(*pair) for pair in zip(current, stored, strict=True)]
    numbers = isinstance(current, float) and type(stored) in (int, float) and math.isfinite(stored)
    if numbers or (type(current) is type(stored) and isinstance(current, int | str | None)):
        return stored
    raise ValueError(f"it has {str(stored)[:20]!r} instead of {str(current)[:20]!r}")


def _rng_key(kind: str, rank: int) -> str:
    return f"rng/{kind}/{rank}" if rank else f"rng/{kind}"


def _digest(tensors: dict[str, Tensor], metadata: Json) -> str:
    """Return the SHA-256 of a checkpoint's content; the manifest does not list a file that changes often."""
    plain = {key: value for key, value in metadata.items() if key != "schema"}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint that belong to one part of its state, by their names there."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _plain(state: Json) -> Json:
    """Drop the schedule's functions, which JSON cannot hold and the configuration rebuilds."""
    return {**state, "lr_lambdas": [None] * len(state.get("lr_lambdas", []))}

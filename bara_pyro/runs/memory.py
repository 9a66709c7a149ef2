"""Estimate the memory that a run needs at least, before anything large is allocated."""

import math
from collections.abc import Mapping
from heapq import nlargest
from pathlib import Path

import psutil
import torch

from bara_pyro.data import EncodedRows
from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import find_targets
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.manifest import ADAPTER, GUIDE
from bara_pyro.runs.store import check_header

FLOAT = 4  # bytes
# A trained parameter, its gradient, Adam's two moments, and two copies to restore if the loss is not finite.
COPIES = 6
# Tensors of the hidden width that a layer keeps for its backward pass, at least.
KEPT = 8


def training_bytes(config: RunConfig, backbone: Backbone, split: EncodedRows) -> int:
    """Return the bytes that training needs at least, beside the language model.

    Counts LoRA's two matrices per module and, for one micro-batch of the longest rows, the hidden states and
    the outputs of each module's rank units.
    """
    c = config.adapter
    targets = find_targets(backbone.lm, c.target_modules, c.top_layers)
    parameters = c.r * sum(target.in_features + target.out_features for target in targets)
    # A batch larger than the split has some rows several times.
    times, more = divmod(config.train.batch_size // config.train.accumulate, len(split))
    lengths = split.lengths
    tokens = times * sum(lengths) + sum(nlargest(more, lengths))
    lm = backbone.lm.config.get_text_config()
    layers = int(lm.num_hidden_layers) - backbone.states.depth(
        t.path for t in targets if not t.is_head
    )  # those below keep nothing
    stored_layers = 1 if config.train.checkpointing else KEPT
    states = stored_layers * tokens * int(lm.hidden_size) * layers
    units = c.r * tokens * sum(not target.is_head for target in targets)
    return FLOAT * (COPIES * parameters + states + units)


def check_memory(config: RunConfig, backbone: Backbone, split: EncodedRows) -> None:
    """Raise a `ConfigError` if a run needs more memory than its device has."""
    needed, there = training_bytes(config, backbone, split), memory(backbone.device)
    if needed > there:
        c, t = config.adapter, config.train
        raise ConfigError(
            f"Training with rank {c.r} and {t.batch_size // t.accumulate} rows at a time needs at least "
            f"{needed / 2**30:,.1f} GiB, but {backbone.device} has {there / 2**30:,.1f}: lower --r or "
            "--batch-size, or raise --accumulate."
        )


def check_stored_rank(
    folder: Path, config: RunConfig, backbone: Backbone, rank_pattern: Mapping[str, int]
) -> None:
    """Raise a `CheckpointError` if a run's files hold too few numbers for its rank, before any is allocated.

    Every program stores at least r numbers per input or per output of each adapted layer.
    """
    shapes = [shape for name in (ADAPTER, GUIDE) for shape in check_header(folder / name).values()]
    c = config.adapter
    r, targets = c.r, find_targets(backbone.lm, c.target_modules, c.top_layers)
    needed = sum(rank_pattern.get(t.path, r) * min(t.in_features, t.out_features) for t in targets)
    if needed > (there := sum(map(math.prod, shapes))):
        raise CheckpointError(
            f"{folder} has rank {r}, which needs at least {needed:,} numbers for {len(targets)} layers, but "
            f"its files hold {there:,}: restore it from a copy."
        )


def memory(device: torch.device) -> int:
    """Return the bytes of memory of a device, or of the machine if it shares its memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return int(psutil.virtual_memory().total)

"""Whether a run can fit at all: a low estimate of its memory, made before anything large is allocated."""

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
# A trained parameter, its gradient, Adam's two moments, and two copies to return to when the loss breaks.
COPIES = 6
# Tensors of the hidden width that a layer keeps for its backward pass, at the least.
KEPT = 8


def training_bytes(config: RunConfig, backbone: Backbone, split: EncodedRows) -> int:
    """Return bytes that training needs at the least, beside the language model.

    LoRA's two matrices a module are counted, and of one micro-batch of the longest rows the hidden states and
    what each module's rank units give a token.
    """
    c = config.adapter
    targets = find_targets(backbone.lm, c.target_modules)
    parameters = c.r * sum(target.in_features + target.out_features for target in targets)
    # A batch of more rows than there are has some of them several times.
    times, more = divmod(config.train.batch_size // config.train.accumulate, len(split))
    lengths = split.lengths
    tokens = times * sum(lengths) + sum(nlargest(more, lengths))
    lm = backbone.lm.config.get_text_config()
    layers = int(lm.num_hidden_layers) - backbone.states.depth(
        t.path for t in targets if not t.is_head
    )  # those below keep nothing
    kept = 1 if config.train.checkpointing else KEPT
    states = kept * tokens * int(lm.hidden_size) * layers
    units = c.r * tokens * sum(not target.is_head for target in targets)
    return FLOAT * (COPIES * parameters + states + units)


def check_memory(config: RunConfig, backbone: Backbone, split: EncodedRows) -> None:
    """Refuse a run that cannot fit into the memory of its device.

    Raises:
        ConfigError: it would need more than the device has.
    """
    needed, there = training_bytes(config, backbone, split), memory(backbone.device)
    if needed > there:
        c, t = config.adapter, config.train
        raise ConfigError(
            f"Training with rank {c.r} and {t.batch_size // t.accumulate} rows at a time needs at least "
            f"{needed / 2**30:,.1f} GiB, {backbone.device} has {there / 2**30:,.1f}: lower --r or "
            "--batch-size, or raise --accumulate."
        )


def check_stored_rank(
    folder: Path, config: RunConfig, backbone: Backbone, rank_pattern: Mapping[str, int]
) -> None:
    """Refuse a rank that the files of a run have no room for, before anything of that size is made.

    Of every adapted layer each program keeps r numbers for each of its inputs or for each of its outputs.

    Raises:
        CheckpointError: the files hold fewer, or cannot be read.
    """
    shapes = [shape for name in (ADAPTER, GUIDE) for shape in check_header(folder / name).values()]
    targets, r = find_targets(backbone.lm, config.adapter.target_modules), config.adapter.r
    needed = sum(rank_pattern.get(t.path, r) * min(t.in_features, t.out_features) for t in targets)
    if needed > (there := sum(map(math.prod, shapes))):
        raise CheckpointError(
            f"{folder} says rank {r}, for which {len(targets)} layers keep {needed:,} numbers or more, and "
            f"its files hold {there:,}: restore it from a copy."
        )


def memory(device: torch.device) -> int:
    """Return the bytes of memory that a device has; of the machine where it has none of its own."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return int(psutil.virtual_memory().total)

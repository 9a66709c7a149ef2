"""The device of a run, and whether its memory suffices, before anything large is allocated."""

from heapq import nlargest
from typing import cast

import psutil
import torch

from bara_pyro.data import EncodedRows
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import AUTO
from bara_pyro.lm.targets import find_targets
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.launched import local_rank

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


def memory(device: torch.device) -> int:
    """Return the bytes of memory of a device, or of the machine if it shares its memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return int(psutil.virtual_memory().total)


def find_device(name: str) -> torch.device | str:
    """Return an available device; with several processes on a machine, "cuda" gives each its own GPU.

    "auto", which spreads a language model over all GPUs, is returned unchanged, but several processes cannot
    share them. This, or a device that is unknown or not available, raises a `ConfigError`.
    """
    if name == AUTO:
        if local_rank() is not None:
            raise ConfigError(
                "backbone.device='auto' uses all GPUs of a machine, which several processes cannot share: "
                "start one process, or use 'cuda'."
            )
        return name
    try:
        device = torch.device(name)
        index = cast("int | None", device.index)  # torch's types leave None out
        if device.type == "cuda" and index is None and (local := local_rank()) is not None:
            device = torch.device("cuda", local)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"The device {name!r} is unknown or not available: choose cpu, or cuda or mps if there is one."
        ) from error
    return device

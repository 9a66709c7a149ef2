"""Ranks set by `torchrun` and `accelerate launch`; imports nothing heavy."""

import os


def rank() -> int:
    """Return the rank of this process in the training; 0 if it is the only process."""
    return int(os.environ.get("RANK", "0"))


def processes() -> int:
    """Return the number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int | None:
    """Return the rank on this machine, which is also the GPU's index; None without a launcher."""
    number = os.environ.get("LOCAL_RANK")
    return None if number is None else int(number)

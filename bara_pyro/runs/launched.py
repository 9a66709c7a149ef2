"""What `torchrun` and `accelerate launch` say to the processes that they start; imports nothing heavy."""

import os


def rank() -> int:
    """Return the number of this process among those of one training; 0 where it is alone."""
    return int(os.environ.get("RANK", "0"))


def processes() -> int:
    """Return how many train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int | None:
    """Return its number on this machine, which its GPU has too; None where nothing was launched."""
    number = os.environ.get("LOCAL_RANK")
    return None if number is None else int(number)

"""Work for other processes: what they import must be in a module of its own."""

import os
import signal
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Number:
    value: int
    gpus: int = 0


def square(item: Number) -> dict[str, int]:
    """Return the square with the process that worked it out; the process is killed at 2."""
    if item.value == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"square": item.value**2, "process": os.getpid(), "threads": torch.get_num_threads()}

"""Data-parallel training: each process takes a share of a step's rows, and gradients are averaged."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed

from bara_pyro.errors import ProcessLostError

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Ranks:
    """Rank of this process among those of a training run.

    All processes must call the methods in the same order. With one process nothing is sent.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
        device: device for tensors that are sent.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def share(self, rows: Sequence[int]) -> Sequence[int]:
        """Return this process's part of a step's rows, whose number must be divisible by `size`."""
        part = len(rows) // self.size
        return rows[self.rank * part : (self.rank + 1) * part]

    def average(self, tensors: Sequence[Tensor], numbers: Mapping[str, float]) -> dict[str, float]:
        """Replace tensors by their mean over the processes; return the means of the numbers.

        Tensors and numbers are means over rows, so with equal shares the result equals that of one process
        with all rows.
        """
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        values = torch.tensor([*numbers.values()], dtype=torch.float64).to(self.device)
        with _talking():
            distributed.all_reduce(flat)
            distributed.all_reduce(values)
        parts = (flat / self.size).split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
        return dict(zip(numbers, (values / self.size).tolist(), strict=True))

    def largest(self, number: int) -> int:
        """Return the largest number that any process has."""
        if self.size == 1:
            return number
        value = torch.tensor(number, device=self.device)
        with _talking():
            distributed.all_reduce(value, distributed.ReduceOp.MAX)
        return int(value)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all processes, in order of rank."""
        if self.size == 1:
            return [tensor]
        local = tensor.to(self.device)
        every = [torch.empty_like(local) for _ in range(self.size)]
        with _talking():
            distributed.all_gather(every, local)
        return [value.to(tensor.device) for value in every]

    def take_over(self, tensors: Sequence[Tensor]) -> None:
        """Wait for all processes, and copy the first one's values to all."""
        if self.size == 1:
            return
        with _talking():
            distributed.barrier()
            for tensor in tensors:
                distributed.broadcast(tensor, 0)


ALONE = Ranks()


def number_of_processes() -> int:
    """Return the number of processes that train together, from the joined group or the launcher."""
    if distributed.is_initialized():
        return distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined(device: torch.device, timeout: float) -> Iterator[Ranks]:
    """Join the processes that `torchrun` or `accelerate launch` started together with this one.

    An existing process group is used and kept.

    Args:
        device: device of the model.
        timeout: seconds to wait for other processes.

    Raises:
        ProcessLostError: another process is gone or did not answer in time.
    """
    if distributed.is_initialized():
        yield Ranks(distributed.get_rank(), distributed.get_world_size(), device)
        return
    if number_of_processes() == 1:
        yield ALONE
        return
    cuda = device.type == "cuda"
    with _talking():
        distributed.init_process_group(
            "nccl" if cuda else "gloo",
            timeout=timedelta(seconds=timeout),
            device_id=device if cuda else None,
        )
    try:
        yield Ranks(distributed.get_rank(), distributed.get_world_size(), device)
    finally:
        distributed.destroy_process_group()


@contextmanager
def _talking() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch raises subclasses for a lost connection or a timeout
        raise ProcessLostError(
            "Another process of this training run is gone or does not answer: this one stops."
        ) from error

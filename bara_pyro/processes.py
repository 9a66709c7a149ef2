"""Processes that train one model together: each takes its share of a step's rows, gradients are averaged."""

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
    """This process among those of a training.

    Every method is called by all of them, in the same order; where there is only one, nothing is sent.

    Attributes:
        rank: number of this one, from 0.
        size: how many there are.
        device: where tensors that are sent have to be.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def share(self, rows: Sequence[int]) -> Sequence[int]:
        """Return this process's part of the rows of a step, which the processes can share evenly."""
        part = len(rows) // self.size
        return rows[self.rank * part : (self.rank + 1) * part]

    def average(self, tensors: Sequence[Tensor], numbers: Mapping[str, float]) -> dict[str, float]:
        """Replace tensors by their mean over the processes; return the means of the numbers.

        All are sums over rows divided by their number, or the same for every row: with equal shares the mean
        is that of one process with all rows.
        """
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        own = torch.tensor([*numbers.values()], dtype=torch.float64).to(self.device)
        with _talking():
            distributed.all_reduce(flat)
            distributed.all_reduce(own)
        parts = (flat / self.size).split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
        return dict(zip(numbers, (own / self.size).tolist(), strict=True))

    def largest(self, number: int) -> int:
        """Return the largest number that any process has."""
        if self.size == 1:
            return number
        value = torch.tensor(number, device=self.device)
        with _talking():
            distributed.all_reduce(value, distributed.ReduceOp.MAX)
        return int(value)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensor of every process, in their order."""
        if self.size == 1:
            return [tensor]
        own = tensor.to(self.device)
        every = [torch.empty_like(own) for _ in range(self.size)]
        with _talking():
            distributed.all_gather(every, own)
        return [value.to(tensor.device) for value in every]

    def take_over(self, tensors: Sequence[Tensor]) -> None:
        """Wait for all, and let all have the first one's values."""
        if self.size == 1:
            return
        with _talking():
            distributed.barrier()
            for tensor in tensors:
                distributed.broadcast(tensor, 0)


ALONE = Ranks()


def number_of_processes() -> int:
    """Return how many processes train together: those of the group that was joined, or started together."""
    if distributed.is_initialized():
        return distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined(device: torch.device, timeout: float) -> Iterator[Ranks]:
    """Join the processes that `torchrun` or `accelerate launch` started together with this one.

    A group that the program has joined already is used and kept.

    Args:
        device: of the model.
        timeout: seconds that one waits for another.

    Raises:
        ProcessLostError: another one is gone, or did not answer in time.
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
    except RuntimeError as error:  # torch's own kinds of it are what a lost connection and a timeout are
        raise ProcessLostError(
            "Another process of this training is gone or does not answer, so that this one stops."
        ) from error

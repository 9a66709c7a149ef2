"""Random signs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints


class Signs(TorchDistribution):
    """Independent random signs: 1 or -1, with probability 1/2 each, in float32.

    Args:
        shape: the batch shape.
        device: the device of draws.
    """

    arg_constraints = {}  # noqa: RUF012
    support = constraints.integer_interval(-1, 1)

    def __init__(self, shape: Sequence[int], device: torch.device | str) -> None:
        self.device = torch.device(device)
        super().__init__(torch.Size(shape), validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: Signs | None = None) -> Signs:
        """Return the distribution of a larger batch."""
        return Signs(batch_shape, self.device)

    @property
    def mean(self) -> Tensor:
        """The mean: zeros, shape ``batch_shape``."""
        return torch.zeros(self.batch_shape, device=self.device)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw signs of shape ``sample_shape + batch_shape``."""
        shape = self._extended_shape(torch.Size(sample_shape))
        if self.device.type == "cpu":  # the draws of `torch.bernoulli`, in a quarter of its time
            return from_numbers(torch.rand(shape, dtype=torch.float32, device=self.device))
        return torch.bernoulli(torch.full((), 0.5, device=self.device).expand(shape)).mul_(2).sub_(1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of signs in nats, of batch shape."""
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        return value.new_full((), -math.log(2)).expand(shape)


def from_numbers(numbers: Tensor) -> Tensor:
    """Turn uniform numbers into signs, in place: 1 below 1/2, else -1."""
    return numbers.lt_(0.5).mul_(2).sub_(1)

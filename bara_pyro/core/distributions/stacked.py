"""KL divergences of many latents in as few operations as one takes: their distributions are stacked."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache
from inspect import signature
from itertools import groupby
from typing import Any, NamedTuple

import torch
from pyro.distributions import Independent, TorchDistribution
from torch import Tensor
from torch.distributions import kl_divergence
from torch.distributions.utils import lazy_property

from bara_pyro.core.distributions.analytic import is_known
from bara_pyro.core.distributions.kl import unexpanded

# Above this many terms a float32 sum of KL values loses digits that the gradient needs.
FLOAT64_SUM = 1_000_000


class LatentPair(NamedTuple):
    """Posterior and prior of one latent, and which of their batch counts.

    Attributes:
        q, p: of the same batch and event shape.
        mask: bool, broadcasts to the batch shape; None: all of it.
    """

    q: TorchDistribution
    p: TorchDistribution
    mask: Tensor | None


def kind(pair: LatentPair) -> Hashable | None:
    """Return what pairs share that `kl_sums` takes together; None for one that it does not take.

    It takes distributions that are independent from entry to entry, `to_event` of a distribution of single
    numbers, and that are known to be what their parameters say. That they have an analytic KL is the
    caller's to know.
    """
    q, p = pair.q, pair.p
    if not (_entrywise(q) and _entrywise(p) and q.event_shape == p.event_shape):
        return None
    priors = tuple(_number(value) for value in _parameters(p.base_dist).values())
    dtype = next(iter(_parameters(q.base_dist).values())).dtype
    return type(q.base_dist), type(p.base_dist), q.event_shape, priors, dtype


def kl_sums(pairs: Sequence[LatentPair]) -> list[Tensor]:
    """Return ``KL(q || p)`` of each pair in nats, summed over all its entries that count.

    Args:
        pairs: all of one `kind`.

    Returns:
        The sums in the order of the pairs, those of neighbours of one size in one vector.

    """
    event = pairs[0].q.event_shape
    q = _stacked([pair.q.base_dist for pair in pairs], event)
    p = _stacked([pair.p.base_dist for pair in pairs], event, numbers=True)
    values = kl_divergence(q, p).flatten(1).sum(-1)
    sizes = [pair.q.batch_shape.numel() for pair in pairs]
    if any(pair.mask is not None for pair in pairs):
        count = torch.cat([_rows_that_count(pair, values.device) for pair in pairs])
        values = torch.where(count, values, 0.0)
    return _segment_sums(values, sizes)


def _entrywise(distribution: TorchDistribution) -> bool:
    """Whether the distribution is ``to_event`` of single numbers, with no batch dimension left over."""
    return (
        isinstance(distribution, Independent)
        and not distribution.base_dist.event_shape
        and distribution.reinterpreted_batch_ndims == len(distribution.event_shape)
        and _made_of_parameters(type(distribution.base_dist))  # type: ignore[arg-type]  # a class can be hashed
        and bool(_parameters(distribution.base_dist))
    )


@cache
def _made_of_parameters(distribution: Any) -> bool:
    """Whether a distribution can be made again from its parameters; a user's own may hold more."""
    # `event_dim` that is not given: of single numbers.
    arguments = {*signature(distribution).parameters} - {"validate_args", "event_dim"}
    return is_known(distribution) and arguments == set(distribution.arg_constraints)


def _parameters(distribution: TorchDistribution) -> dict[str, Tensor]:
    """Return what a distribution is made from; of two parametrisations (probs, logits) the one used."""
    lazy = [
        name
        for name in distribution.arg_constraints
        if isinstance(getattr(type(distribution), name, None), lazy_property)
    ]
    names = [name for name in distribution.arg_constraints if name not in lazy or name in vars(distribution)]
    return {name: getattr(distribution, name) for name in names}


def _number(value: Tensor) -> int | None:
    """Return the address of the one number that a parameter repeats; None where it is more than one."""
    single = unexpanded(value)
    return single.data_ptr() if single.numel() == 1 and value.numel() > 1 else None


def _stacked(
    distributions: Sequence[TorchDistribution], event: torch.Size, *, numbers: bool = False
) -> TorchDistribution:
    """Return distributions of one kind as one, ``N x event``; with `numbers`, single numbers stay so."""
    stacked: dict[str, Any] = {}
    for name, first in _parameters(distributions[0]).items():
        if numbers and _number(first) is not None:
            stacked[name] = unexpanded(first).reshape(())
        else:
            stacked[name] = torch.cat(
                [getattr(distribution, name).reshape(-1, *event) for distribution in distributions]
            )
    return type(distributions[0])(**stacked, validate_args=False)


def _rows_that_count(pair: LatentPair, device: torch.device) -> Tensor:
    mask = _true(device) if pair.mask is None else pair.mask
    return mask.expand(pair.q.batch_shape).reshape(-1)


@cache  # never dropped: a captured step reads it where it lies
def _true(device: torch.device) -> Tensor:
    return torch.ones((), dtype=torch.bool, device=device)


def _segment_sums(values: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return the sums of consecutive pieces of these sizes, neighbours of one size in one vector."""
    runs = [(size, len(list(run))) for size, run in groupby(sizes)]
    dtype = torch.float64 if max(sizes) > FLOAT64_SUM else values.dtype
    pieces = values.split([size * number for size, number in runs])
    return [
        piece.reshape(number, size).sum(-1, dtype=dtype)
        for piece, (size, number) in zip(pieces, runs, strict=True)
    ]

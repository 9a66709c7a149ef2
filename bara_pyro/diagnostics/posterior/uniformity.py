"""Whether ranks are uniform: their distribution function in a simultaneous band.

The band is that of Sailynoja, Buerkner and Vehtari (Statistics and Computing, 2022): at each point the same
probability to be left, chosen such that a uniform sample stays inside everywhere with the given probability.
That probability is found by simulation here. No function of ArviZ, whose own changed with its version 1.
"""

import math

import torch
from torch import Tensor

from bara_pyro.errors import ConfigError

RESAMPLES = 4000  # uniform samples behind a p-value, whose smallest is 1 / 4001
PRECISION = 10  # of them below a p-value that is small enough


def ecdf(ranks: Tensor, draws: int) -> Tensor:
    """Return the share of ranks up to 0, 1, ..., L - 1, float64, `Q x L`, of ranks `N x Q` from 0 to L."""
    return _counts(ranks.T, draws).double() / len(ranks)


def resamples_for(quantities: int, level: float) -> int:
    """Return how many uniform samples tell a p-value that is small for so many quantities together."""
    return max(RESAMPLES, math.ceil(PRECISION * quantities / (1 - level)))


def ecdf_test(ranks: Tensor, draws: int, resamples: int = RESAMPLES) -> Tensor:
    """Return the p-value of uniformity of each of Q columns of ranks `N x Q` from 0 to L, float64.

    The statistic is the smallest pointwise p-value of the distribution function; the smallest p-value is 1 /
    (1 + `resamples`).

    Raises:
        ConfigError: a rank is not one of 0 to L.
    """
    if bool(((ranks < 0) | (ranks > draws)).any()):
        raise ConfigError(f"Ranks among {draws} draws must lie between 0 and {draws}.")
    null = _null(len(ranks), draws, resamples).sort().values
    least = _least(_counts(ranks.T, draws), _pointwise(len(ranks), draws))
    below = torch.searchsorted(null, least * (1 + 1e-9), right=True)
    return (1 + below).double() / (1 + resamples)


def band(simulations: int, draws: int, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Return the lower and upper end of `ecdf` that N uniform ranks stay within everywhere, `L` each.

    Raises:
        ConfigError: `level` is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ConfigError(f"level={level} must lie between 0 and 1, for example 0.95.")
    allowed = _pointwise(simulations, draws) >= _null(simulations, draws).quantile(1 - level)
    counts = torch.arange(simulations + 1)
    low = torch.where(allowed, counts, simulations).amin(-1)
    high = torch.where(allowed, counts, 0).amax(-1)
    return low.double() / simulations, high.double() / simulations


def _counts(ranks: Tensor, draws: int) -> Tensor:
    """Return how many of N ranks are at most 0, ..., L - 1: `... x N` to `... x L`."""
    each = torch.zeros(*ranks.shape[:-1], draws + 1, dtype=torch.long, device=ranks.device)
    return each.scatter_add_(-1, ranks, torch.ones_like(ranks)).cumsum(-1)[..., :-1]


def _pointwise(simulations: int, draws: int) -> Tensor:
    """Return the two-sided p-value of every count at every point, `L x (N + 1)`: the exact binomial."""
    share = (torch.arange(1, draws + 1).double() / (draws + 1))[:, None]
    count = torch.arange(simulations + 1)
    distribution = torch.distributions.Binomial(simulations, share, validate_args=False)
    mass = distribution.log_prob(count.double()).exp()
    lower, upper = mass.cumsum(-1), mass.flip(-1).cumsum(-1).flip(-1)
    return (2 * torch.minimum(lower, upper)).clamp(max=1)


def _least(counts: Tensor, pointwise: Tensor) -> Tensor:
    """Return the smallest pointwise p-value of counts `R x L`."""
    return pointwise[torch.arange(counts.shape[-1]), counts].amin(-1)


def _null(simulations: int, draws: int, resamples: int = RESAMPLES) -> Tensor:
    """Return the smallest pointwise p-value of uniform samples, `resamples`."""
    generator = torch.Generator().manual_seed(0)
    pointwise, found = _pointwise(simulations, draws), []
    for start in range(0, resamples, RESAMPLES):  # piece by piece, for memory
        shape = (min(RESAMPLES, resamples - start), simulations)
        found.append(_least(_counts(torch.randint(draws + 1, shape, generator=generator), draws), pointwise))
    return torch.cat(found)

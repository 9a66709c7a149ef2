"""Test whether ranks are uniform, by a simultaneous band for their distribution function.

The band is that of Sailynoja, Buerkner and Vehtari (Statistics and Computing, 2022). The probability of
leaving it is the same at each point, and chosen so that a uniform sample stays inside everywhere with the
given probability. It is found by simulation. ArviZ is not used because its version changed with ArviZ 1.
"""

import math

import torch
from torch import Tensor

from bara_pyro.errors import ConfigError

RESAMPLES = 4000  # uniform samples for a p-value; the smallest p-value is then 1 / 4001
PRECISION = 10  # expected number of uniform samples below the smallest p-value that must be resolved


def ecdf(ranks: Tensor, draws: int) -> Tensor:
    """Return the share of ranks up to 0, 1, ..., L - 1 (float64, `Q x L`) of ranks `N x Q` from 0 to L."""
    return _counts(ranks.T, draws).double() / len(ranks)


def resamples_for(quantities: int, level: float) -> int:
    """Return the number of uniform samples that resolves p-values for several quantities together."""
    return max(RESAMPLES, math.ceil(PRECISION * quantities / (1 - level)))


def ecdf_test(ranks: Tensor, draws: int, resamples: int = RESAMPLES) -> Tensor:
    """Return the p-value of uniformity for each of Q quantities, float64, `Q`.

    The statistic is the smallest pointwise p-value of the distribution function. p-values are at least 1 / (1
    + `resamples`). `ranks` are long, `N x Q`, from 0 to L = `draws`; others raise a `ConfigError`.
    """
    if bool(((ranks < 0) | (ranks > draws)).any()):
        raise ConfigError(
            f"Ranks lie between {int(ranks.min())} and {int(ranks.max())}: give ranks from 0 to {draws}."
        )
    null = _null(len(ranks), draws, resamples).sort().values
    least = _least(_counts(ranks.T, draws), _pointwise(len(ranks), draws))
    below = torch.searchsorted(null, least * (1 + 1e-9), right=True)
    return (1 + below).double() / (1 + resamples)


def band(simulations: int, draws: int, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Return the lower and upper end (`L` each) of a band that contains the `ecdf` of N uniform ranks.

    Raises:
        ConfigError: `level` is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}: give a number between 0 and 1, 0.95 for example.")
    allowed = _pointwise(simulations, draws) >= _null(simulations, draws).quantile(1 - level)
    counts = torch.arange(simulations + 1)
    low = torch.where(allowed, counts, simulations).amin(-1)
    high = torch.where(allowed, counts, 0).amax(-1)
    return low.double() / simulations, high.double() / simulations


def _counts(ranks: Tensor, draws: int) -> Tensor:
    """Return the number of ranks that are at most 0, ..., L - 1: `... x N` to `... x L`."""
    each = torch.zeros(*ranks.shape[:-1], draws + 1, dtype=torch.long, device=ranks.device)
    return each.scatter_add_(-1, ranks, torch.ones_like(ranks)).cumsum(-1)[..., :-1]


def _pointwise(simulations: int, draws: int) -> Tensor:
    """Return the exact two-sided binomial p-value of every count at every point, `L x (N + 1)`."""
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
    """Return the smallest pointwise p-value of each uniform sample, `resamples`."""
    generator = torch.Generator().manual_seed(0)
    pointwise, statistics = _pointwise(simulations, draws), []
    for start in range(0, resamples, RESAMPLES):  # in pieces, to limit memory
        shape = (min(RESAMPLES, resamples - start), simulations)
        statistics.append(
            _least(_counts(torch.randint(draws + 1, shape, generator=generator), draws), pointwise)
        )
    return torch.cat(statistics)

r"""How many directions an input uses: the effective rank, and the support relation behind it.

    S(x) = {k : |Phi_k theta_k(x)| > tau},   s(x) = |S(x)|        (paper, Definition of joint effective rank)

**Support relation.** The paper's Proposition 1 says S(x) lies within S_Phi and S_theta(x), the units whose
Phi exceeds tau_Phi and whose theta exceeds tau_theta. With tau = tau_Phi tau_theta, as its main text has
it, that is not so: Phi = 0.05 is off at tau_Phi = 0.1, but with theta = 100 the product is 5. It holds where

    tau >= max(R_L tau_Phi, R_G tau_theta),   R_G = max |Phi|,  R_L = max |theta|      (second appendix)

because a unit that is off in Phi has a product of at most tau_Phi R_L, and likewise for theta.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.stats import rankdata
from torch import Tensor

from bara_pyro.core.gate_draws import GateDraws
from bara_pyro.diagnostics.gates.sparsity import TAU, check_tau
from bara_pyro.diagnostics.result import Number
from bara_pyro.errors import DataError

RESAMPLES, LEVEL = 2000, 0.95  # bootstrap samples of rows, and the coverage of their interval
# Rows that differ from the most usual value, at the least: where one row of 256 is an error, a bootstrap
# calls what is unrelated related in 85 % of 200 simulations; where ten are, in 4.5 %.
FEWEST = 10


def effective_rank(draws: GateDraws, tau: float = TAU) -> Tensor:
    """Return the expected number of units in use, by row and module: float64, `n x M`, from 0 to r.

    The mean over the draws of s(x); of the mean gate where `samples=0` was asked for.

    Examples:
        >>> import torch
        >>> from bara_pyro.core.gate_draws import GateDraws
        >>> from bara_pyro.diagnostics.gates.rank import effective_rank
        >>> phi = torch.tensor([[[1.0, 1.0, 0.01]], [[1.0, 1.0, 1.0]]])  # two draws, one module, r = 3
        >>> theta = torch.tensor([[[[1.0, 0.0, 1.0]]], [[[1.0, 0.0, 1.0]]]])  # of one row
        >>> draws = GateDraws(("lm_head",), ("row",), phi, theta, torch.full((2, 1, 2), 0.5).log())
        >>> effective_rank(draws, tau=0.1).tolist()  # one unit in the first draw, two in the second
        [[1.5]]
    """
    check_tau(tau)
    return (draws.psi.abs() > tau).double().sum(dim=-1).mean(dim=0)


@dataclass(frozen=True)
class RankSummary:
    """The effective rank in a few numbers, in units (of r)."""

    mean: float  # over rows and modules
    over_rows: float  # standard deviation over rows of a row's mean over modules
    over_modules: float  # standard deviation over modules of a module's mean over rows
    within_modules: float  # standard deviation over rows within a module, averaged over modules


def rank_summary(rank: Tensor) -> RankSummary:
    """Summarise `effective_rank`, `n x M`; a spread over one thing is 0.

    Examples:
        >>> import torch
        >>> from bara_pyro.diagnostics.gates.rank import rank_summary
        >>> rank_summary(torch.tensor([[1.0, 3.0], [1.0, 3.0]]))  # two rows alike, two modules
        RankSummary(mean=2.0, over_rows=0.0, over_modules=1.4142135381698608, within_modules=0.0)
    """
    return RankSummary(
        float(rank.mean()),
        _spread(rank.mean(dim=1)),
        _spread(rank.mean(dim=0)),
        float(torch.stack([torch.as_tensor(_spread(column)) for column in rank.T]).mean()),
    )


@dataclass(frozen=True)
class RankCorrelation:
    """A rank correlation between the effective rank of rows and something else that is known of them."""

    with_: str  # what the effective rank is compared with
    rho: Number  # Spearman's correlation, from -1 to 1; NaN where one of both does not vary
    low: Number  # a bootstrap interval over rows; NaN where too few of them differ
    high: Number
    level: float  # its coverage
    rows: int  # how many it rests on

    @property
    def verdict(self) -> str:
        """What follows: "rises with", "falls with" or "is unrelated to"."""
        if math.isnan(self.rho) or math.isnan(self.low):
            return "cannot be related to"
        return "rises with" if self.low > 0 else "falls with" if self.high < 0 else "is not seen to vary with"


def relation(rank: Tensor, values: Tensor | Sequence[float], name: str) -> RankCorrelation:
    """Relate the effective rank of rows to a number of theirs: true entropy, error, predicted entropy.

    Args:
        rank: `n x M` of `effective_rank`; averaged over modules.
        values: `n`; rows where it is NaN are left out.
        name: what the values are.

    Raises:
        DataError: the lengths differ, or fewer than three rows have a value.

    Examples:
        >>> import torch
        >>> from bara_pyro.diagnostics.gates.rank import relation
        >>> rank = torch.arange(30.0)[:, None]  # of 30 rows, one module
        >>> found = relation(rank, rank.squeeze(1) ** 2, "the square")
        >>> found.rho, found.rows
        (1.0, 30)
    """
    other = torch.as_tensor(values, dtype=torch.float64)
    if other.shape != rank.shape[:1]:
        raise DataError(f"{name} has {len(other)} values for {len(rank)} rows: give one a row.")
    known = ~other.isnan()
    if int(known.sum()) < 3:
        raise DataError(f"{name} is known of {int(known.sum())} rows: three are needed for a correlation.")
    a, b = rank.mean(dim=1)[known], other[known]
    if min(_others(a), _others(b)) < FEWEST:
        return RankCorrelation(name, float(_spearman(a, b)), math.nan, math.nan, LEVEL, len(a))
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(a), (RESAMPLES, len(a)), generator=generator)
    drawn = _spearman(a[chosen], b[chosen])
    tail = (1 - LEVEL) / 2
    found = drawn[~drawn.isnan()]
    ends = torch.quantile(found, torch.tensor([tail, 1 - tail], dtype=torch.float64)) if len(found) else None
    low, high = (math.nan, math.nan) if ends is None else ends.tolist()
    return RankCorrelation(name, float(_spearman(a, b)), low, high, LEVEL, len(a))


@dataclass(frozen=True)
class SupportRelation:
    """How the supports of Phi, theta and their product lie to one another, over draws, rows and modules."""

    tau_phi: float
    tau_theta: float
    tau_product: float  # the main text's threshold of the product, `tau_phi * tau_theta`
    tau_sound: float  # the least for which the relation is certain, `max(R_L tau_phi, R_G tau_theta)`
    phi: float  # mean number of units above the factors' thresholds
    theta: float
    product: float  # above `tau_product`
    sound: float  # above `tau_sound`
    # Percentage of (draw, row, module) whose product's support at `tau_product` is not within both factors'
    # supports (what the main text's proof says cannot happen), and at `tau_sound` (0 by the second appendix).
    broken: float
    broken_sound: float


def support_relation(draws: GateDraws, tau_phi: float = TAU, tau_theta: float = TAU) -> SupportRelation:
    """Measure Proposition 1's relation on draws of the gates.

    Raises:
        DataError: the program has not both kinds of gate.
        ConfigError: a threshold is negative.

    Examples:
        >>> import torch
        >>> from bara_pyro.core.gate_draws import GateDraws
        >>> from bara_pyro.diagnostics.gates.rank import support_relation
        >>> phi, theta = torch.tensor([[[0.05, 1.0]]]), torch.tensor([[[[100.0, 1.0]]]])
        >>> draws = GateDraws(("lm_head",), ("row",), phi, theta, torch.full((1, 1, 2), 0.5).log())
        >>> found = support_relation(draws, tau_phi=0.1, tau_theta=0.1)
        >>> found.phi, found.product, found.broken  # 0.05 is off, and 0.05 * 100 is not
        (1.0, 2.0, 100.0)
    """
    if draws.phi is None or draws.theta is None:
        raise DataError("The support relation is one of Phi and theta: this model has not both.")
    check_tau(tau_phi)
    check_tau(tau_theta)
    phi, theta = draws.phi.unsqueeze(1).abs(), draws.theta.abs()
    both = (phi > tau_phi) & (theta > tau_theta)
    product = phi * theta
    least = max(float(theta.max()) * tau_phi, float(phi.max()) * tau_theta)
    # One step up: the product is rounded, and the relation asks for "not above".
    sound = torch.nextafter(torch.tensor(least), torch.tensor(math.inf)).item()

    def count(units: Tensor) -> float:
        return float(units.double().sum(dim=-1).mean())

    def broken(tau: float) -> float:
        return 100 * float(((product > tau) & ~both).any(dim=-1).double().mean())

    return SupportRelation(
        tau_phi,
        tau_theta,
        tau_phi * tau_theta,
        sound,
        count(phi > tau_phi),
        count(theta > tau_theta),
        count(product > tau_phi * tau_theta),
        count(product > sound),
        broken(tau_phi * tau_theta),
        broken(sound),
    )


def _others(values: Tensor) -> int:
    """Return how many values are not the most frequent one."""
    return len(values) - int(values.unique(return_counts=True)[1].max())


def _spread(values: Tensor) -> float:
    return float(values.std()) if len(values) > 1 else 0.0


def _spearman(a: Tensor, b: Tensor) -> Tensor:
    """Return Spearman's correlation along the last dimension, ties at their mean rank."""
    a, b = (torch.from_numpy(rankdata(v.numpy(), axis=-1)) for v in (a, b))
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()

"""Sparsity of the gates and effective rank."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.stats import rankdata
from torch import Tensor

from bara_pyro.core.gate_draws import GateDraws
from bara_pyro.diagnostics import Number
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics import sparsity_by_module
from bara_pyro.metrics.sparsity import over_modules

GATES = ("phi", "theta", "psi")
TAU = 0.1
"""The paper's threshold."""


@dataclass(frozen=True)
class Sparsity:
    """Percentages of gates below a threshold."""

    modules: tuple[str, ...]  # paths of the M modules
    tau: float  # the threshold
    by_module: dict[str, Tensor]  # "phi", "theta" and "psi" -> percentage, float64, `M`
    ranks: tuple[int, ...] = ()  # units of each module; if empty, all modules have the same number

    @property
    def overall(self) -> dict[str, float]:
        """The percentages over all units of all modules."""
        return {name: over_modules(values, self.ranks) for name, values in self.by_module.items()}


def gate_sparsity(draws: GateDraws, tau: float = TAU) -> Sparsity:
    """Return the sparsity of the gates of each module in percent, over draws, rows and units.

    `phi` is 0 if the program has no global gate (LoRA, `latent: theta`). `theta` is left out if the program
    has no local gate.

    Raises:
        ConfigError: `tau` is negative.

    Examples:
        >>> import torch
        >>> from bara_pyro.core.gate_draws import GateDraws
        >>> from bara_pyro.diagnostics.sparsity import gate_sparsity
        >>> phi, theta = torch.tensor([[[0.05, 1.0]]]), torch.tensor([[[[0.01, 0.01]]]])
        >>> draws = GateDraws(("lm_head",), ("row",), phi, theta, torch.full((1, 1, 2), 0.5).log())
        >>> gate_sparsity(draws, tau=0.1).overall
        {'phi': 50.0, 'theta': 100.0, 'psi': 100.0}
    """
    check_tau(tau)
    by_kind = {name: sparsity_by_module(value, tau, draws.ranks) for name, value in draws.by_kind().items()}
    none = torch.zeros(len(draws.modules), dtype=torch.float64)
    return Sparsity(draws.modules, tau, {"phi": none, **by_kind}, draws.ranks)


def check_tau(tau: float) -> None:
    """Raise a `ConfigError` for a threshold that is negative or NaN."""
    if not tau >= 0:
        raise ConfigError(f"tau is {tau}: give a threshold of 0 or more.")


RESAMPLES, LEVEL = 2000, 0.95  # bootstrap samples of rows, and the coverage of the interval
# The smallest number of rows that differ from the most frequent value. With one error in 256 rows the
# bootstrap found false relations in 85 % of 200 simulations; with ten errors in 4.5 %.
FEWEST = 10


def effective_rank(draws: GateDraws, tau: float = TAU) -> Tensor:
    """Return the expected number of units in use by row and module, float64, `n x M`, from 0 to r.

    This is the mean of s(x) over the draws, or s(x) of the mean gate for draws made with `samples=0`.

    Examples:
        >>> import torch
        >>> from bara_pyro.core.gate_draws import GateDraws
        >>> from bara_pyro.diagnostics.sparsity import effective_rank
        >>> phi = torch.tensor([[[1.0, 1.0, 0.01]], [[1.0, 1.0, 1.0]]])  # two draws, one module, r = 3
        >>> theta = torch.tensor([[[[1.0, 0.0, 1.0]]], [[[1.0, 0.0, 1.0]]]])  # one row
        >>> draws = GateDraws(("lm_head",), ("row",), phi, theta, torch.full((2, 1, 2), 0.5).log())
        >>> effective_rank(draws, tau=0.1).tolist()  # one unit in the first draw, two in the second
        [[1.5]]
    """
    check_tau(tau)
    return (draws.psi.abs() > tau).double().sum(dim=-1).mean(dim=0)


@dataclass(frozen=True)
class RankSummary:
    """A summary of the effective rank, in units (of r)."""

    mean: float  # mean over rows and modules
    over_rows: float  # standard deviation over rows of the mean over modules
    over_modules: float  # standard deviation over modules of the mean over rows
    within_modules: float  # standard deviation over rows in a module, averaged over modules


def rank_summary(rank: Tensor) -> RankSummary:
    """Summarise an `effective_rank` (`n x M`); standard deviations of a single value are 0.

    Examples:
        >>> import torch
        >>> from bara_pyro.diagnostics.sparsity import rank_summary
        >>> rank_summary(torch.tensor([[1.0, 3.0], [1.0, 3.0]]))  # two rows alike, two modules
        RankSummary(mean=2.0, over_rows=0.0, over_modules=1.4142135381698608, within_modules=0.0)
    """
    return RankSummary(
        float(rank.mean()),
        spread(rank.mean(dim=1)),
        spread(rank.mean(dim=0)),
        float(torch.stack([torch.as_tensor(spread(column)) for column in rank.T]).mean()),
    )


@dataclass(frozen=True)
class RankCorrelation:
    """The rank correlation of the effective rank with another property of rows."""

    with_: str  # name of the other property
    rho: Number  # Spearman's correlation, from -1 to 1; NaN if one of the two does not vary
    low: Number  # lower end of a bootstrap interval over rows; NaN if too few rows differ
    high: Number  # upper end
    level: float  # coverage of the interval
    rows: int  # number of rows

    @property
    def verdict(self) -> str:
        """The finding: "rises with", "falls with", "does not clearly vary with" or "cannot be related to"."""
        if math.isnan(self.rho) or math.isnan(self.low):
            return "cannot be related to"
        return (
            "rises with" if self.low > 0 else "falls with" if self.high < 0 else "does not clearly vary with"
        )


def relation(rank: Tensor, values: Tensor | Sequence[float], name: str) -> RankCorrelation:
    """Correlate the effective rank of rows with another value: true entropy, error or predicted entropy.

    Args:
        rank: `n x M`, from `effective_rank`; averaged over modules.
        values: `n`, one value for each row; rows with NaN are left out.
        name: name of the values.

    Raises:
        DataError: the lengths differ, or fewer than three rows have a value.

    Examples:
        >>> import torch
        >>> from bara_pyro.diagnostics.sparsity import relation
        >>> rank = torch.arange(30.0)[:, None]  # 30 rows, one module
        >>> found = relation(rank, rank.squeeze(1) ** 2, "the square")
        >>> found.rho, found.rows
        (1.0, 30)
    """
    other = torch.as_tensor(values, dtype=torch.float64)
    if other.shape != rank.shape[:1]:
        raise DataError(f"{name} has {len(other)} values for {len(rank)} rows: give one for each row.")
    known = ~other.isnan()
    if int(known.sum()) < 3:
        raise DataError(f"{name} is known for {int(known.sum())} rows: give values for three rows or more.")
    a, b = rank.mean(dim=1)[known], other[known]
    if min(_others(a), _others(b)) < FEWEST:
        return RankCorrelation(name, float(_spearman(a, b)), math.nan, math.nan, LEVEL, len(a))
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(a), (RESAMPLES, len(a)), generator=generator)
    tails = torch.tensor([(1 - LEVEL) / 2, 1 - (1 - LEVEL) / 2], dtype=torch.float64)
    low, high = torch.nanquantile(_spearman(a[chosen], b[chosen]), tails).tolist()
    return RankCorrelation(name, float(_spearman(a, b)), low, high, LEVEL, len(a))


@dataclass(frozen=True)
class SupportRelation:
    """How the supports of Phi, theta and their product relate, over draws, rows and modules."""

    tau_phi: float  # threshold of Phi
    tau_theta: float  # threshold of theta
    tau_product: float  # threshold of the product in the main text, `tau_phi * tau_theta`
    tau_sound: (
        float  # smallest threshold for which the relation is certain, `max(R_L tau_phi, R_G tau_theta)`
    )
    phi: float  # mean number of units with Phi above `tau_phi`
    theta: float  # mean number of units with theta above `tau_theta`
    product: float  # mean number of units with the product above `tau_product`
    sound: float  # mean number of units with the product above `tau_sound`
    # Percentage of (draw, row, module) in which the support of the product is not contained in the supports
    # of both factors: at `tau_product` (0 by the main text's proof) and at `tau_sound` (0 by the second
    # appendix).
    broken: float
    broken_sound: float


def support_relation(draws: GateDraws, tau_phi: float = TAU, tau_theta: float = TAU) -> SupportRelation:
    """Measure the support relation of Proposition 1 on draws of the gates.

    Raises:
        DataError: the program does not have both kinds of gates.
        ConfigError: a threshold is negative.

    Examples:
        >>> import torch
        >>> from bara_pyro.core.gate_draws import GateDraws
        >>> from bara_pyro.diagnostics.sparsity import support_relation
        >>> phi, theta = torch.tensor([[[0.05, 1.0]]]), torch.tensor([[[[100.0, 1.0]]]])
        >>> draws = GateDraws(("lm_head",), ("row",), phi, theta, torch.full((1, 1, 2), 0.5).log())
        >>> found = support_relation(draws, tau_phi=0.1, tau_theta=0.1)
        >>> found.phi, found.product, found.broken  # 0.05 is off, but 0.05 * 100 is not
        (1.0, 2.0, 100.0)
    """
    if draws.phi is None or draws.theta is None:
        raise DataError("The support relation needs Phi and theta: give a model with both kinds of gates.")
    check_tau(tau_phi)
    check_tau(tau_theta)
    phi, theta = draws.phi.unsqueeze(1).abs(), draws.theta.abs()
    both = (phi > tau_phi) & (theta > tau_theta)
    product = phi * theta
    least = max(float(theta.max()) * tau_phi, float(phi.max()) * tau_theta)
    # One step up, because the product is rounded and must not be above the threshold.
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
    """Return how many values differ from the most frequent one."""
    return len(values) - int(values.unique(return_counts=True)[1].max())


def spread(values: Tensor) -> float:
    """Return the standard deviation of values; 0 for a single one."""
    return float(values.std()) if len(values) > 1 else 0.0


def _spearman(a: Tensor, b: Tensor) -> Tensor:
    """Return Spearman's correlation along the last dimension; ties get their mean rank."""
    a, b = (torch.from_numpy(rankdata(v.numpy(), axis=-1)) for v in (a, b))
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()

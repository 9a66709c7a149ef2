r"""How much of the rank is as good as off: sparsity of Phi, theta and their product Psi, layer by layer.

    Sparsity(z; tau) = 100 / N * #{i : |z_i| < tau}        (paper, Section "Qualitative Analysis of Sparsity")

The paper does not say of which draw: three readings are offered, each by the draws that are given.

    one draw       `gate_draws(..., samples=1)`   what the paper's Phi figures are: multiples of 1/224, ..
    mean gate      `gate_draws(..., samples=0)`   E[Phi] E[theta]: sparse only where the posterior is sure
    expectation    `gate_draws(..., samples=S)`   the share of draws in which an entry is off, averaged

LoRA has no gate. Its activations `A x` stand for theta and Psi, and Phi counts as 0 by bookkeeping.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bara_pyro.core.gate_draws import GateDraws
from bara_pyro.errors import ConfigError
from bara_pyro.metrics import sparsity_by_module
from bara_pyro.metrics.sparsity import over_modules

GATES = ("phi", "theta", "psi")
TAU = 0.1
"""The paper's threshold."""


@dataclass(frozen=True)
class Sparsity:
    """Percentages of entries below a threshold."""

    modules: tuple[str, ...]  # paths of the M modules
    tau: float  # the threshold
    by_module: dict[str, Tensor]  # "phi", "theta" and "psi" -> float64, `M`
    ranks: tuple[int, ...] = ()  # units of each module; empty: as many each

    @property
    def overall(self) -> dict[str, float]:
        """The percentages over all units of all modules."""
        return {name: over_modules(values, self.ranks) for name, values in self.by_module.items()}


def gate_sparsity(draws: GateDraws, tau: float = TAU) -> Sparsity:
    """Return the sparsity of the gates of each module, over draws, rows and rank.

    `phi` is 0 where the program has no global gate (LoRA, `latent: theta`); `theta` is left out where it has
    no local one.

    Raises:
        ConfigError: `tau` is negative.

    Examples:
        >>> import torch
        >>> from bara_pyro.core.gate_draws import GateDraws
        >>> from bara_pyro.diagnostics.gates.sparsity import gate_sparsity
        >>> phi, theta = torch.tensor([[[0.05, 1.0]]]), torch.tensor([[[[0.01, 0.01]]]])
        >>> draws = GateDraws(("lm_head",), ("row",), phi, theta, torch.full((1, 1, 2), 0.5).log())
        >>> gate_sparsity(draws, tau=0.1).overall
        {'phi': 50.0, 'theta': 100.0, 'psi': 100.0}
    """
    check_tau(tau)
    found = {name: sparsity_by_module(value, tau, draws.ranks) for name, value in draws.by_kind().items()}
    none = torch.zeros(len(draws.modules), dtype=torch.float64)
    return Sparsity(draws.modules, tau, {"phi": none, **found}, draws.ranks)


def sparsity_curve(draws: GateDraws, taus: Sequence[float]) -> dict[str, Tensor]:
    """Return the sparsity over all modules at each of T thresholds: `phi`, `theta`, `psi` -> float64, `T`.

    Examples:
        >>> import torch
        >>> from bara_pyro.core.gate_draws import GateDraws
        >>> from bara_pyro.diagnostics.gates.sparsity import sparsity_curve
        >>> phi, theta = torch.tensor([[[0.05, 1.0]]]), torch.tensor([[[[1.0, 1.0]]]])
        >>> draws = GateDraws(("lm_head",), ("row",), phi, theta, torch.full((1, 1, 2), 0.5).log())
        >>> sparsity_curve(draws, [0.01, 0.1, 2.0])["psi"].tolist()
        [0.0, 50.0, 100.0]
    """
    found = [gate_sparsity(draws, tau).overall for tau in taus]
    return {name: torch.tensor([values[name] for values in found], dtype=torch.float64) for name in found[0]}


def check_tau(tau: float) -> None:
    """Check a threshold.

    Raises:
        ConfigError: it is negative or not a number.
    """
    if not tau >= 0:
        raise ConfigError(f"tau is {tau}: give a threshold of at least 0.")

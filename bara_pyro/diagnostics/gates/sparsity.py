r"""Sparsity of the gates Phi and theta and of their product Psi, by layer.

    Sparsity(z; tau) = 100 / N * #{i : |z_i| < tau}        (paper, Section "Qualitative Analysis of Sparsity")

The paper does not say which draw z is. The draws passed in decide between three interpretations:

    one draw       `gate_draws(..., samples=1)`   the paper's Phi figures (multiples of 1/224, ..)
    mean gate      `gate_draws(..., samples=0)`   E[Phi] E[theta]: sparse only if the posterior is certain
    expectation    `gate_draws(..., samples=S)`   mean over draws of the share of entries that are off

LoRA has no gates. Its activations `A x` take the place of theta and Psi, and none of Phi counts as off.
"""

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
        >>> from bara_pyro.diagnostics.gates.sparsity import gate_sparsity
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

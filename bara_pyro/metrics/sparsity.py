"""How many entries of a gate or an activation are as good as off."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bara_pyro.errors import ConfigError, DataError


def sparsity(z: Tensor | Sequence[float], tau: float = 0.1) -> float:
    """Return the percentage of entries of `z` with `|z| < tau` (paper, section 'Layer-wise Sparsity').

    Args:
        z: any shape: Phi, theta or their product.
        tau: the threshold below which an entry counts as off; the paper uses 0.1.

    Raises:
        DataError: when `z` is empty or holds NaN.
        ConfigError: when `tau` is negative.

    Examples:
        >>> from bara_pyro.metrics import sparsity
        >>> sparsity([0.01, -0.05, 0.3, 1.2])
        50.0
    """
    values = torch.as_tensor(z).detach()
    if values.numel() == 0:
        raise DataError(f"z is empty (shape {tuple(values.shape)}): it has no sparsity.")
    if torch.isnan(values).any():
        raise DataError("z holds NaN: the gate failed there.")
    if tau < 0:
        raise ConfigError(f"tau is {tau}: give a threshold of at least 0.")
    return 100.0 * int((values.abs() < tau).sum()) / values.numel()


def sparsity_by_module(gates: Tensor, tau: float = 0.1, ranks: Sequence[int] = ()) -> Tensor:
    """Return the percentage of entries with `|z| < tau` of each of M modules, float64, `M`.

    Args:
        gates: `S x n x M x r`: draws, rows, modules, rank units.
        tau: see `sparsity`.
        ranks: units that each of the modules has, the first of the r; empty: all. Those that are pruned away
            are no gates.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import sparsity_by_module
        >>> gates = torch.tensor([[0.0, 0.0], [0.05, 1.0], [1.0, 1.0]])[None, None]  # of three modules
        >>> sparsity_by_module(gates).tolist()
        [100.0, 50.0, 0.0]
        >>> sparsity_by_module(gates, ranks=(2, 1, 2)).tolist()
        [100.0, 100.0, 0.0]
    """
    if ranks:
        there = torch.arange(gates.shape[-1], device=gates.device) < gates.new_tensor(ranks)[:, None]
        closed = (gates.abs() < tau).double().mean(dim=(0, 1)) * there
        return 100 * closed.sum(-1) / there.sum(-1)
    return 100 * (gates.abs() < tau).double().mean(dim=(0, 1, 3))


def over_modules(percentages: Tensor, ranks: Sequence[int] = ()) -> float:
    """Return the percentage over all units of M modules, each of which counts by the units that it has.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics.sparsity import over_modules
        >>> over_modules(torch.tensor([100.0, 0.0])), over_modules(torch.tensor([100.0, 0.0]), (3, 1))
        (50.0, 75.0)
    """
    if not ranks:
        return float(percentages.mean())
    return float((percentages * percentages.new_tensor(ranks)).sum() / sum(ranks))

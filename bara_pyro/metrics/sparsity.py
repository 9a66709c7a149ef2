"""The share of entries of a gate or an activation that are close to 0."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bara_pyro.errors import ConfigError, DataError


def sparsity(z: Tensor | Sequence[float], tau: float = 0.1) -> float:
    """Return the percentage of entries of `z` with `|z| < tau`.

    Source: the BaRA paper (arXiv 2606.29184), section "Layer-wise Sparsity".

    Args:
        z: any shape: Phi, theta or their product.
        tau: the threshold below which an entry counts as off; the paper uses 0.1.

    Raises:
        DataError: `z` is empty or contains NaN.
        ConfigError: `tau` is negative.

    Examples:
        >>> from bara_pyro.metrics import sparsity
        >>> sparsity([0.01, -0.05, 0.3, 1.2])
        50.0
    """
    values = torch.as_tensor(z).detach()
    if values.numel() == 0:
        raise DataError(f"z is empty (shape {tuple(values.shape)}): give at least one entry.")
    if torch.isnan(values).any():
        raise DataError("z contains NaN: give finite gates.")
    if tau < 0:
        raise ConfigError(f"tau is {tau}: give a threshold of 0 or more.")
    return 100.0 * int((values.abs() < tau).sum()) / values.numel()


def sparsity_by_module(gates: Tensor, tau: float = 0.1, ranks: Sequence[int] = ()) -> Tensor:
    """Return the percentage of gates with `|z| < tau` in each of M modules, float64, `M`.

    Args:
        gates: `S x n x M x r`: draws, rows, modules, rank units.
        tau: see `sparsity`.
        ranks: the number of units of each module: its first units count, the others do not. If empty, all
            units count.

    Examples:
        >>> import torch
        >>> from bara_pyro.metrics import sparsity_by_module
        >>> gates = torch.tensor([[0.0, 0.0], [0.05, 1.0], [1.0, 1.0]])[None, None]  # three modules
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
    """Return the percentage over all units from those of M modules, weighted by their number of units.

    Args:
        percentages: `M`.
        ranks: the number of units of each module; if empty, all modules count equally.
    """
    if not ranks:
        return float(percentages.mean())
    return float((percentages * percentages.new_tensor(ranks)).sum() / sum(ranks))

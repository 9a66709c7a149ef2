"""The range in which a gate's parameters are numerically safe, and a clamp that training can leave."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

KAPPA_MIN = 0.01
"""Smallest ``kappa``: below, the density is so narrow that float32 cannot place a value in it."""
KAPPA_MAX = 5.0
"""Largest ``kappa``: at 5 the coefficient of variation is 16, and beyond float32 draws underflow to 0."""
MEAN_MIN = 1e-8
"""Smallest mean: softplus underflows to 0 at a raw value of about -104, and the KL takes its logarithm."""


def bound_kappa(kappa: Tensor, high: float = KAPPA_MAX) -> Tensor:
    """Clamp ``kappa`` to ``[KAPPA_MIN, high]``, letting gradients that lead back inside pass."""
    return _Bound.apply(kappa, KAPPA_MIN, high)


def bound_shape(shape: Tensor, high: float = KAPPA_MAX) -> Tensor:
    """Clamp the Weibull shape ``k = 1 / kappa`` so that ``kappa`` is in ``[KAPPA_MIN, high]``, likewise."""
    return _Bound.apply(shape, 1 / high, 1 / KAPPA_MIN)


def bound_mean(mean: Tensor) -> Tensor:
    """Raise ``mean`` to at least ``MEAN_MIN``, letting gradients that lead back up pass."""
    return _Bound.apply(mean, MEAN_MIN, None)


class _Bound(torch.autograd.Function):
    """A clamp with a one-way gradient: the identity inside and, outside, for steps that lead back inside.

    A plain clamp has gradient 0 outside, so that a unit which once leaves the range never returns. A
    sigmoid stretched over the range returns, but moves the starting point ``softplus(0)`` and flattens
    the interior. A straight-through clamp lets the raw value drift outwards without limit. This one leaves
    the interior exactly as it is, and descent can only bring an outside value back.
    """

    # With a separate setup_context torch would inspect this signature at every call, for 0.3 ms.
    @staticmethod
    def forward(ctx: Any, value: Tensor, low: float, high: float | None) -> Tensor:
        bounded = value.clamp(low, high)
        ctx.save_for_backward(value, bounded)
        return bounded

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        value, bounded = ctx.saved_tensors
        # Descent moves against the gradient: outward where it has the opposite sign of the excess.
        outward = (value - bounded).mul_(grad) < 0
        return grad.masked_fill(outward, 0), None, None

"""Means, noise levels and draws of gates from raw parameters, as one node of the autograd graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bara_pyro.core.distributions.bounds import KAPPA_MIN, MEAN_MIN, bound_kappa, bound_mean


def drawn_gate(raw: Tensor, log_energy: Tensor, max_kappa: float) -> tuple[Tensor, Tensor, Tensor]:
    r"""Draw :math:`t = m E^\kappa / \Gamma(1 + \kappa)` with m and kappa softplus of raw numbers, bounded.

    What :class:`.MeanWeibull` and :func:`.bound_mean`, :func:`.bound_kappa` do one by one, in 7 operations
    forward and 9 backward instead of some 30: on an accelerator a step of training waits for the number of
    them. Gradients that reach mean and kappa from elsewhere (the KL) are added on the way: the bounds let a
    gradient through by the sign of the sum.

    Args:
        raw: ``... x 2r``, of the means and of the noise levels.
        log_energy: ``... x r``, log E of exponential noise.
        max_kappa: Largest kappa.

    Returns:
        Draw, mean and kappa, each ``... x r``; differentiable once, in ``raw``.

    """
    return _DrawnGate.apply(raw, log_energy, max_kappa)


class _DrawnGate(torch.autograd.Function):
    # With a separate setup_context torch would inspect this signature at every call, for 0.3 ms.
    @staticmethod
    def forward(ctx: Any, raw: Tensor, log_energy: Tensor, max_kappa: float) -> tuple[Tensor, Tensor, Tensor]:
        level = F.softplus(raw)
        low, high, tiny = _constants(log_energy.shape[-1], max_kappa, raw.dtype, raw.device)
        bounded = level.clamp(low, high)
        mean, kappa = bounded.chunk(2, dim=-1)
        shifted = kappa + 1
        # The inverse of E^kappa / Gamma(1 + kappa): infinite where a draw would underflow to 0, which is
        # outside the support.
        spread = torch.addcmul(torch.lgamma(shifted), kappa, log_energy, value=-1).exp_()
        value = torch.addcdiv(tiny, mean, spread)
        ctx.save_for_backward(raw, level, bounded, shifted, log_energy, value)
        return value, mean, kappa

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_value: Tensor, grad_mean: Tensor, grad_kappa: Tensor
    ) -> tuple[Tensor, None, None]:
        raw, level, bounded, shifted, log_energy, value = ctx.saved_tensors
        rank = value.shape[-1]
        scaled = grad_value * value  # by log t
        grad = torch.empty_like(bounded)
        torch.addcdiv(grad_mean, scaled, bounded[..., :rank], out=grad[..., :rank])
        slope = log_energy - torch.digamma(shifted)
        torch.addcmul(grad_kappa, scaled, slope, out=grad[..., rank:])
        # Outside the bounds only steps that lead back in pass, see `bounds`: what has not the sign of the
        # excess is 0. One operation for comparison and filling.
        sign = (level - bounded).mul_(grad)
        grad = torch.ops.aten.threshold_backward(grad, sign, -torch.finfo(raw.dtype).tiny)
        return torch.ops.aten.softplus_backward(grad, raw, 1, 20), None, None


@cache  # never dropped: a captured step reads them where they lie
def _constants(
    r: int, max_kappa: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the smallest and the largest means and noise levels, ``2r`` each, and the smallest draw."""

    def constant(value: float | list[float]) -> Tensor:
        return torch.tensor(value, dtype=dtype, device=device)

    low, high = [MEAN_MIN] * r + [KAPPA_MIN] * r, [math.inf] * r + [max_kappa] * r
    return constant(low), constant(high), constant(torch.finfo(dtype).tiny)


class RawGates:
    """K gates whose raw parameters were computed together, for :meth:`.MeanWeibull.from_raw`.

    The first draw makes values, means and noise levels of all K in one node. Where the parameters are asked
    for first, they are made alone, and a draw is each gate's own.

    Args:
        raw: ``... x K x 2r``, float32 or float64: r of the mean, r of kappa.
        max_kappa: Largest kappa.

    """

    def __init__(self, raw: Tensor, max_kappa: float) -> None:
        self.raw = raw
        self.max_kappa = max_kappa
        self.shape = torch.Size((*raw.shape[:-2], raw.shape[-1] // 2))
        self._drawn: dict[int, Tensor] = {}
        self._parameters: tuple[tuple[Tensor, Tensor], ...] = ()

    def draw(self, index: int) -> Tensor | None:
        """Return one gate's part of the draw of all, ``... x r``; None where it was taken or not made."""
        if not self._parameters:
            value, mean, kappa = drawn_gate(self.raw, self._log_energy(), self.max_kappa)
            self._drawn = dict(enumerate(_each(value)))
            self._parameters = tuple(zip(_each(mean), _each(kappa), strict=True))
        return self._drawn.pop(index, None)

    def parameters(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one gate's mean and kappa, ``... x r`` each."""
        if not self._parameters:
            level = F.softplus(self.raw)
            if torch.is_grad_enabled():
                mean, kappa = level.chunk(2, dim=-1)
                mean, kappa = bound_mean(mean), bound_kappa(kappa, self.max_kappa)
            else:  # the same bounds in one operation
                low, high, _ = _constants(self.shape[-1], self.max_kappa, level.dtype, level.device)
                mean, kappa = level.clamp(low, high).chunk(2, dim=-1)
            self._parameters = tuple(zip(_each(mean), _each(kappa), strict=True))
        return self._parameters[index]

    def _log_energy(self) -> Tensor:
        # Filled gate by gate: the numbers that each would draw for itself.
        noise = self.raw.new_empty(self.raw.shape[-2], *self.shape)
        for own in noise:
            own.exponential_()
        return log_of(noise).movedim(0, -2)


def log_of(energy: Tensor) -> Tensor:
    """Return the logarithm of exponential noise, in its place; finite where a generator returned a 0."""
    return energy.clamp_(min=torch.finfo(energy.dtype).tiny).log_()  # -inf would make kappa's gradient a NaN


def _each(values: Tensor) -> Sequence[Tensor]:
    """Return the K gates of ``... x K x r``; of one a view, whose gradient is no copy."""
    return [values.squeeze(-2)] if values.shape[-2] == 1 else values.unbind(-2)

"""The Weibull distribution of BaRA's gates by mean and reciprocal shape, and its safe range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import broadcast_all
from torch.nn.functional import softplus

EULER = 0.5772156649015329
"""The Euler-Mascheroni constant g: the mean of -log E for E ~ Exp(1)."""


class MeanWeibull(TorchDistribution):
    r"""Weibull distribution with mean ``mean`` and shape ``1 / kappa``.

    A draw is :math:`t = m \exp(\kappa \log E - \log\Gamma(1 + \kappa))` with :math:`E \sim Exp(1)`: the
    Weibull sample of BaRA (arXiv 2606.29184, Alg. 1) with the normaliser of its variational equations, so
    that :math:`E[t] = m`. In the usual parameters the shape is :math:`1 / \kappa` and the scale
    :math:`m / \Gamma(1 + \kappa)`. ``kappa = 1`` is the exponential distribution; smaller values concentrate
    around the mean (coefficient of variation about :math:`1.28 \kappa`), larger ones pile up near zero with a
    heavy tail. Draws are accurate for ``kappa`` in ``[KAPPA_MIN, KAPPA_MAX]``; see :func:`bound_kappa`.

    All computations are in log space: at ``kappa = 34``, ``Gamma(1 + kappa)`` overflows float32 while the
    scale underflows, and their product with the noise would be ``0 * inf``. Half-precision parameters are
    converted to float32, because in bfloat16 an exponential draw is 0 with a probability of about 0.002.

    Args:
        mean: Mean ``m > 0``; a number or a tensor, broadcast against ``kappa``, e.g. ``B x T x r``.
        kappa: Reciprocal shape ``1 / k > 0``.
        validate_args: Check parameters and values; None follows Pyro's global setting.

    Raises:
        ValueError: If validation is on and a parameter is not positive.

    Examples:
        >>> import torch
        >>> from bara_pyro.core.distributions import MeanWeibull
        >>> gate = MeanWeibull(torch.full((4, 8), 0.5), torch.tensor(0.7)).to_event(1)
        >>> gate.batch_shape, gate.event_shape, gate.rsample().shape
        (torch.Size([4]), torch.Size([8]), torch.Size([4, 8]))

        With its KL divergence, here from the prior itself:

        >>> from torch.distributions import Gamma, kl_divergence
        >>> abs(float(kl_divergence(MeanWeibull(0.5, 1.0), Gamma(1.0, 2.0)))) < 1e-6
        True
        >>> round(float(kl_divergence(MeanWeibull(1.0, 0.5), Gamma(1.0, 1.0))), 4)
        0.2838
    """

    arg_constraints = {"mean": constraints.positive, "kappa": constraints.positive}  # noqa: RUF012
    support = constraints.positive
    has_rsample = True
    _log_norm: Tensor | None

    def __init__(
        self, mean: Tensor | float, kappa: Tensor | float, validate_args: bool | None = None
    ) -> None:
        if not (isinstance(mean, Tensor) and isinstance(kappa, Tensor) and mean.shape == kappa.shape):
            mean, kappa = broadcast_all(mean, kappa)
        self._mean, self._kappa = _at_least_float32(mean), _at_least_float32(kappa)
        self._log_norm = None
        super().__init__(self._mean.shape, validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: MeanWeibull | None = None) -> MeanWeibull:
        """Return a view of batch shape ``batch_shape`` that shares the parameters and ``log_norm``."""
        new = self._get_checked_instance(MeanWeibull, _instance)
        batch_shape = torch.Size(batch_shape)
        new._mean, new._kappa = self.mean.expand(batch_shape), self.kappa.expand(batch_shape)
        # Nearly every use needs it: computed here, on the smaller tensor, rather than once per view.
        new._log_norm = self.log_norm.expand(batch_shape)
        super(MeanWeibull, new).__init__(batch_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def log_norm(self) -> Tensor:
        """``-lgamma(1 + kappa)``, the log of scale / mean; computed once and shared by all who need it."""
        if self._log_norm is None:
            self._log_norm = cast(Tensor, _LogNorm.apply(self.kappa))
        return self._log_norm

    @property
    def log_scale(self) -> Tensor:
        """Log of the Weibull scale."""
        return self.mean.log() + self.log_norm

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw reparameterised samples of shape ``sample_shape + batch_shape``, all strictly positive."""
        shape = self._extended_shape(torch.Size(sample_shape))
        energy = exponential(self.mean, shape)
        # A generator may return a 0, whose logarithm would make kappa's gradient a NaN.
        log_energy = energy.clamp_(min=torch.finfo(energy.dtype).tiny).log_()
        value: Tensor = _Draw.apply(self.mean, self.kappa, self.log_norm, log_energy)
        return value

    def _log_energy(self, value: Tensor) -> Tensor:
        """Return log E of the noise that gives ``value``: log((value / scale) ** (1 / kappa))."""
        return (value.log() - self.log_scale) / self.kappa

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density of ``value`` in nats; far in the upper tail it is -inf."""
        if self._validate_args:
            self._validate_sample(value)
        log_energy = self._log_energy(value)
        return log_energy - log_energy.exp() - value.log() - self.kappa.log()

    def cdf(self, value: Tensor) -> Tensor:
        """Return P(t <= value)."""
        if self._validate_args:
            self._validate_sample(value)
        return -torch.expm1(-self._log_energy(value).exp())

    def icdf(self, value: Tensor) -> Tensor:
        """Return the quantile at probability ``value`` in (0, 1)."""
        log_energy = torch.log(-torch.log1p(-value))
        return torch.addcmul(self.log_norm, self.kappa, log_energy).exp() * self.mean

    def entropy(self) -> Tensor:
        """Return the differential entropy in nats, shape ``batch_shape``."""
        return EULER * (1 - self.kappa) + self.log_scale + self.kappa.log() + 1

    @property
    def mean(self) -> Tensor:
        """The mean, shape ``batch_shape``."""
        return self._mean

    @property
    def kappa(self) -> Tensor:
        """The reciprocal of the shape, shape ``batch_shape``."""
        return self._kappa

    @property
    def mode(self) -> Tensor:
        """The mode; 0 from ``kappa = 1`` on, where the density decreases from the start."""
        return (self.log_scale + self.kappa * torch.log1p(-self.kappa.clamp(max=1))).exp()

    @property
    def stddev(self) -> Tensor:
        """The standard deviation; unlike the root of ``variance`` it never squares the mean."""
        return self.mean * self._squared_cv().sqrt()

    @property
    def variance(self) -> Tensor:
        """The variance; in float32 at ``kappa = 0.01`` about three digits survive (use float64)."""
        return self.mean.square() * self._squared_cv()

    def _squared_cv(self) -> Tensor:
        # Gamma(1 + 2 kappa) / Gamma(1 + kappa)^2 - 1, whose two factors overflow long before the quotient.
        return torch.expm1(torch.lgamma(1 + 2 * self.kappa) + 2 * self.log_norm)


def _at_least_float32(value: Tensor) -> Tensor:
    return value if value.dtype in (torch.float32, torch.float64) else value.float()


def exponential(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Draw from Exp(1) in the dtype and on the device of another tensor, as ``exponential_`` does."""
    if like.device.type != "cpu":
        return like.new_empty(shape).exponential_()
    # On a CPU the numbers of torch's generator and their rounding are the same, in a third of the time.
    return torch.rand(shape, dtype=torch.float64, device=like.device).neg_().log1p_().neg_().to(like.dtype)


class _LogNorm(torch.autograd.Function):
    """`-lgamma(1 + kappa)`; autograd keeps kappa, which others keep as well, not the sum."""

    @staticmethod
    def forward(ctx: Any, kappa: Tensor) -> Tensor:
        ctx.save_for_backward(kappa)
        return torch.lgamma(kappa + 1).neg_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (kappa,) = ctx.saved_tensors
        return torch.digamma(kappa + 1).mul(grad).neg()


class _Draw(torch.autograd.Function):
    """The draw for given noise; the draw itself serves its gradient, so that autograd keeps nothing else."""

    # With a separate setup_context torch would inspect this signature at every call, which takes 0.3 ms.
    @staticmethod
    def forward(ctx: Any, mean: Tensor, kappa: Tensor, log_norm: Tensor, log_energy: Tensor) -> Tensor:
        value = torch.addcmul(log_norm, kappa, log_energy).exp_().mul_(mean)
        value.clamp_min_(torch.finfo(value.dtype).tiny)  # at large kappa it can underflow to 0
        ctx.save_for_backward(mean, log_energy, value)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        mean, log_energy, value = ctx.saved_tensors
        of_log = grad * value
        return of_log / mean, of_log * log_energy, of_log, None  # autograd sums them over further draws


KAPPA_MIN = 0.01
"""Smallest ``kappa``: below, the density is so narrow that float32 cannot place a value in it."""
KAPPA_MAX = 5.0
"""Largest ``kappa``: at 5 the coefficient of variation is 16, and beyond float32 draws underflow to 0."""
MEAN_MIN = 1e-8
"""Smallest mean: softplus underflows to 0 at a raw value of about -104, and the KL takes its logarithm."""


def bound_kappa(kappa: Tensor, high: float = KAPPA_MAX) -> Tensor:
    """Clamp ``kappa`` to ``[KAPPA_MIN, high]``, letting gradients that lead back inside pass."""
    return _Bound.apply(kappa, KAPPA_MIN, high)


def bound_mean(mean: Tensor) -> Tensor:
    """Raise ``mean`` to at least ``MEAN_MIN``, letting gradients that lead back up pass."""
    return _Bound.apply(mean, MEAN_MIN, None)


def bounded_softplus(raw: Tensor, rank: int, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Return the softplus of means and noise levels, bounded; autograd keeps `raw` only.

    Args:
        raw: `rank` means, then noise levels, `... x (rank + levels)`.
        rank: number of means, which are bounded as by :func:`bound_mean`.
        low: smallest noise level; gradients that lead back inside pass, as in :func:`bound_kappa`.
        high: largest noise level.

    Returns:
        The means, `... x rank`, and the noise levels, `... x levels`.
    """
    return cast(tuple[Tensor, Tensor], _BoundedSoftplus.apply(raw, rank, low, high))


class _BoundedSoftplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, rank: int, low: float, high: float) -> tuple[Tensor, Tensor]:
        value = softplus(raw)
        ctx.save_for_backward(raw)
        ctx.rank, ctx.low, ctx.high = rank, softplus_inverse(low), softplus_inverse(high)
        return value[..., :rank].clamp(MEAN_MIN), value[..., rank:].clamp(low, high)

    @staticmethod
    def backward(ctx: Any, of_mean: Tensor, of_level: Tensor) -> tuple[Tensor, None, None, None]:
        (raw,) = ctx.saved_tensors
        # Bounded before the softplus, so that it is neither kept nor computed again.
        mean, level = raw[..., : ctx.rank], raw[..., ctx.rank :]
        of_mean = _inward(of_mean, mean, mean.clamp(softplus_inverse(MEAN_MIN)))
        of_level = _inward(of_level, level, level.clamp(ctx.low, ctx.high))
        grad = torch.cat([of_mean, of_level], dim=-1)
        return torch.ops.aten.softplus_backward(grad, raw, 1, 20), None, None, None


def softplus_inverse(value: float) -> float:
    """Return the number whose softplus is ``value``, which is positive."""
    return value + math.log(-math.expm1(-value))


class _Bound(torch.autograd.Function):
    """A clamp whose gradient passes inside the range and, outside, only if the step leads back inside.

    A plain clamp has gradient 0 outside, so that a unit never returns once it has left the range. A sigmoid
    stretched over the range would let it return, but would move the starting point ``softplus(0)`` and
    flatten the interior. A straight-through clamp would let the raw value drift outwards without limit.
    """

    # With a separate setup_context torch would inspect this signature at every call, which takes 0.3 ms.
    @staticmethod
    def forward(ctx: Any, value: Tensor, low: float, high: float | None) -> Tensor:
        bounded = value.clamp(low, high)
        ctx.save_for_backward(value, bounded)
        return bounded

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _inward(grad, *ctx.saved_tensors), None, None


def _inward(grad: Tensor, value: Tensor, bounded: Tensor) -> Tensor:
    """Set the gradients to 0 with which a step would lead out of the range."""
    # Descent moves against the gradient, so outwards if the gradient has the opposite sign of the excess.
    outward = (value - bounded).mul_(grad) < 0
    return grad.masked_fill(outward, 0)

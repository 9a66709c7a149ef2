"""Gaussians with a covariance: of a matrix, by Kronecker factors, and of a vector, by its full factor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from pyro.distributions import MultivariateNormal, TorchDistribution
from torch import Tensor
from torch.distributions import Independent, Normal, constraints, register_kl

from bara_pyro.errors import MissingKLError


class KroneckerNormal(TorchDistribution):
    """Zero-mean Gaussian over matrices W of precision `F (x) G + precision I`, `W = U X V^T`.

    U and V hold the eigenvectors of F (side of the rows) and G (side of the columns), so that the entries of
    X are independent of variance `1 / (f_i g_j + precision)`.

    Args:
        row_vectors: U, `m x m`.
        row_values: f, `m`.
        column_vectors: V, `n x n`.
        column_values: g, `n`.
        precision: what is added, positive.
        rows: places of the m rows in a larger matrix whose other rows are independent of variance
            `1 / precision`; None: there are no others.
        size: number of rows of that matrix.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 - checked where the factors are made
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(
        self,
        row_vectors: Tensor,
        row_values: Tensor,
        column_vectors: Tensor,
        column_values: Tensor,
        precision: Tensor,
        *,
        rows: Tensor | None = None,
        size: int | None = None,
    ) -> None:
        self.row_vectors = row_vectors
        self.column_vectors = column_vectors
        self.scale = (row_values[:, None] * column_values + precision).rsqrt().to(row_vectors.dtype)
        self.precision = precision
        self.rows = rows
        event = torch.Size((size or len(row_values), len(column_values)))
        super().__init__(torch.Size(), event, validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: KroneckerNormal | None = None) -> KroneckerNormal:
        """Return the distribution of a batch of independent matrices."""
        new = self._get_checked_instance(KroneckerNormal, _instance)
        for name in ("row_vectors", "column_vectors", "scale", "precision", "rows"):
            setattr(new, name, getattr(self, name))
        super(KroneckerNormal, new).__init__(torch.Size(batch_shape), self.event_shape, validate_args=False)
        return new

    @property
    def mean(self) -> Tensor:
        """Zeros."""
        return torch.zeros(
            self.batch_shape + self.event_shape, dtype=self.scale.dtype, device=self.scale.device
        )

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw matrices, `sample_shape + batch_shape + m x n`."""
        shape = self._extended_shape(torch.Size(sample_shape))
        return self.of_noise(torch.randn(shape, dtype=self.scale.dtype, device=self.scale.device))

    def of_noise(self, noise: Tensor) -> Tensor:
        """Return the draw that standard normal numbers of its shape give."""
        if self.rows is None:
            return self.row_vectors @ (noise * self.scale) @ self.column_vectors.mT
        out = noise * self.precision.rsqrt().to(noise.dtype)
        out[..., self.rows, :] = (
            self.row_vectors @ (noise[..., self.rows, :] * self.scale) @ self.column_vectors.mT
        )
        return out

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density of matrices, of batch shape."""
        own = value if self.rows is None else value[..., self.rows, :]
        free = (self.row_vectors.mT @ own @ self.column_vectors).double()
        scale = self.scale.double()
        out = _log_normal(free, scale)
        if self.rows is not None:
            others = torch.ones(value.shape[-2], dtype=torch.bool, device=value.device)
            others[self.rows] = False
            out = out + _log_normal(value[..., others, :].double(), self.precision.double().rsqrt())
        return out.to(value.dtype)


def _log_normal(value: Tensor, scale: Tensor) -> Tensor:
    scale = scale.expand_as(value)
    entries = -0.5 * (value / scale).square() - scale.log() - 0.5 * math.log(2 * math.pi)
    return entries.sum((-2, -1))


if TYPE_CHECKING:
    from torch import Tensor


class DenseNormal(MultivariateNormal):
    """Pyro's ``MultivariateNormal``, made from the lower triangular factor of its covariance.

    Its divergence from a product of normals costs as many operations as the factor has entries: that from
    another ``MultivariateNormal`` would solve a triangular system a vector.
    """


@register_kl(DenseNormal, Independent)
def kl_dense_normal(q: DenseNormal, p: Independent) -> Tensor:
    """Return KL(q || p) in nats, of the batch shape, for independent normal entries of p.

    Raises:
        MissingKLError: the entries of p are not normal, or not all that q has.
    """
    if not isinstance(p.base_dist, Normal) or p.event_shape != q.event_shape:
        raise MissingKLError(
            f"A Gaussian with full covariance has an analytic KL from a Normal prior alone, "
            f"not from {type(p.base_dist).__name__}: choose that prior."
        )
    mean, variance = p.base_dist.loc, p.base_dist.variance
    # In float64: a factor of 3,584 columns has more entries than a float32 sum holds.
    rows = q.scale_tril.square().sum(-1, dtype=torch.float64)
    trace = ((rows + (q.loc - mean).square()) / variance - 1).sum(-1)
    own = q.scale_tril.diagonal(dim1=-2, dim2=-1)
    return (0.5 * trace + (0.5 * variance.log() - own.log()).sum(-1)).to(q.loc.dtype)

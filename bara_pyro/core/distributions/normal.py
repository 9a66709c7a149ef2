"""Gaussians with correlated entries: a matrix with Kronecker factors, and a vector with a full covariance."""

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
    """Zero-mean Gaussian over matrices `W = U X V^T` with precision `F (x) G + precision I`.

    U and V hold the eigenvectors of F (row factor) and G (column factor). The entries of X are independent
    and have the variance `1 / (f_i g_j + precision)`.

    Args:
        row_vectors: U, `m x m`.
        row_values: eigenvalues f of F, `m`.
        column_vectors: V, `n x n`.
        column_values: eigenvalues g of G, `n`.
        precision: precision of the prior, positive, a scalar tensor.
        rows: indices of the m rows in a larger matrix, long, `m`. The entries of its other rows are
            independent with variance `1 / precision`. None: the matrix has no other rows.
        size: number of rows of the larger matrix; None: m.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 - the callers check the factors
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
        """The mean: zeros, `batch_shape + m x n`."""
        return torch.zeros(
            self.batch_shape + self.event_shape, dtype=self.scale.dtype, device=self.scale.device
        )

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw matrices, `sample_shape + batch_shape + m x n`."""
        shape = self._extended_shape(torch.Size(sample_shape))
        return self.of_noise(torch.randn(shape, dtype=self.scale.dtype, device=self.scale.device))

    def of_noise(self, noise: Tensor) -> Tensor:
        """Return the draw for standard normal `noise` of the same shape."""
        if self.rows is None:
            return self.row_vectors @ (noise * self.scale) @ self.column_vectors.mT
        out = noise * self.precision.rsqrt().to(noise.dtype)
        out[..., self.rows, :] = (
            self.row_vectors @ (noise[..., self.rows, :] * self.scale) @ self.column_vectors.mT
        )
        return out

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density of matrices in nats, of batch shape."""
        correlated = value if self.rows is None else value[..., self.rows, :]
        independent = (self.row_vectors.mT @ correlated @ self.column_vectors).double()
        scale = self.scale.double()
        out = _log_normal(independent, scale)
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
    """Pyro's ``MultivariateNormal`` with a cheap KL divergence to a product of normals.

    Pass the lower triangular factor of the covariance as ``scale_tril``. The divergence takes one operation
    per entry of the factor; torch's rule for two ``MultivariateNormal`` would solve a triangular system per
    vector.
    """


@register_kl(DenseNormal, Independent)
def kl_dense_normal(q: DenseNormal, p: Independent) -> Tensor:
    """Return KL(q || p) in nats, of the batch shape, for a prior p with independent normal entries.

    Raises:
        MissingKLError: p is another distribution, or of another event shape.
    """
    if not isinstance(p.base_dist, Normal) or p.event_shape != q.event_shape:
        raise MissingKLError(
            f"A Gaussian with full covariance has no analytic KL to a {type(p.base_dist).__name__} prior: "
            "choose a Normal prior."
        )
    mean, variance = p.base_dist.loc, p.base_dist.variance
    # In float64, because a factor with 3,584 columns has too many entries for a float32 sum.
    variances = q.scale_tril.square().sum(-1, dtype=torch.float64)
    trace = ((variances + (q.loc - mean).square()) / variance - 1).sum(-1)
    diagonal = q.scale_tril.diagonal(dim1=-2, dim2=-1)
    return (0.5 * trace + (0.5 * variance.log() - diagonal.log()).sum(-1)).to(q.loc.dtype)

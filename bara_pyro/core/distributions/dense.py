"""A Gaussian vector with a full covariance, and its divergence from an isotropic Gaussian."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pyro.distributions import MultivariateNormal
from torch.distributions import Independent, Normal, register_kl

from bara_pyro.errors import MissingKLError

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

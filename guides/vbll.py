"""Posterior of a Bayesian last layer: one Gaussian with full covariance per answer."""

import math

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn

from bara_pyro.core.distributions.normal import DenseNormal
from bara_pyro.core.guide import SiteGuide
from bara_pyro.errors import ConfigError
from bara_pyro.models.vbll import VBLL

FLOAT = 4  # bytes
COPIES = 4  # per parameter in training: itself, its gradient, Adam's two moments
FACTORS = 2  # square matrices per answer during a step: the factor and its gradient


class VBLLGuide(SiteGuide):
    """`q(W) = prod_k Normal(m_k, L_k L_k^T)`, L_k lower triangular with a positive diagonal.

    It starts at the prior: m_k = 0, L_k = prior_scale I. Only the `d (d + 1) / 2` entries of the triangle L_k
    are stored.

    Args:
        model: the program.
        max_gigabytes: largest size of the covariances in training, in GB.

    Raises:
        ConfigError: the covariances need more than `max_gigabytes`.
    """

    model: VBLL
    program = VBLL

    def __init__(self, model: VBLL, *, max_gigabytes: float = 8.0) -> None:
        super().__init__(model)
        rows, width, device = model.answers, model.width, model.backbone.device
        below = width * (width - 1) // 2
        need = FLOAT * rows * (COPIES * (below + width) + FACTORS * width**2) / 1e9
        if need > max_gigabytes:
            raise ConfigError(
                f"The covariances of {rows} answers of width {width} take {need:.1f} GB in training, "
                f"more than max_gigabytes={max_gigabytes:g}: lower method.answers."
            )
        self.mean = nn.Parameter(torch.zeros(rows, width, device=device))
        self.log_scale = nn.Parameter(
            torch.full((rows, width), math.log(model.prior_scale), device=device)  # of the diagonal
        )
        self.below = nn.Parameter(torch.zeros(rows, below, device=device))
        row, column = torch.tril_indices(width, width, -1, device=device)
        self.register_buffer("below_places", row * width + column, persistent=False)

    def scale_tril(self) -> Tensor:
        """Return L, `K x d x d`."""
        rows, width = self.mean.shape
        flat = self.below.new_zeros(rows, width**2).index_copy(1, self.below_places, self.below)
        return flat.unflatten(-1, (width, width)) + torch.diag_embed(self.log_scale.exp())

    def get_posterior(self, name: str, prior: TorchDistribution) -> TorchDistribution:
        """Return the posterior of the rows: batch shape `K`, event shape `d`."""
        return DenseNormal(self.mean, scale_tril=self.scale_tril(), validate_args=False)

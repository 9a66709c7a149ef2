"""Distributions of the gates, and closed-form KL divergences between posteriors and priors.

Importing this package registers the divergences with :func:`torch.distributions.kl_divergence`, where Pyro's
``TraceMeanField_ELBO`` finds them.
"""

from bara_pyro.core.distributions import kl as kl
from bara_pyro.core.distributions import moments as moments
from bara_pyro.core.distributions import normal as normal  # imported because they register divergences
from bara_pyro.core.distributions.kl import has_analytic_kl
from bara_pyro.core.distributions.signs import Signs
from bara_pyro.core.distributions.weibull import (
    KAPPA_MAX,
    KAPPA_MIN,
    MEAN_MIN,
    MeanWeibull,
    bound_kappa,
    bound_mean,
    bounded_softplus,
    softplus_inverse,
)

__all__ = [
    "KAPPA_MAX",
    "KAPPA_MIN",
    "MEAN_MIN",
    "MeanWeibull",
    "Signs",
    "bound_kappa",
    "bound_mean",
    "bounded_softplus",
    "has_analytic_kl",
    "softplus_inverse",
]

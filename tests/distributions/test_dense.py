"""The Gaussian with a covariance of its own: its divergence by other formulas, its draws by address."""

import pytest
import torch
from pyro import distributions as dist
from scipy import stats
from torch import Tensor
from torch.distributions import kl_divergence
from torch.testing import assert_close

from bara_pyro.core.distributions import has_analytic_kl
from bara_pyro.core.distributions.normal import DenseNormal
from bara_pyro.core.noise import CounterNoise
from bara_pyro.errors import MissingKLError

K, D = 3, 4


def factor(dtype: torch.dtype = torch.float64) -> Tensor:
    """Lower triangular factors with a positive diagonal, `K x D x D`."""
    a = torch.randn(K, D, D, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return a.tril(-1) + torch.diag_embed(a.diagonal(dim1=-2, dim2=-1).exp())


def pair(scale: float = 0.7, dtype: torch.dtype = torch.float64) -> tuple[DenseNormal, dist.Independent]:
    """The distribution, and a prior of independent entries of mean 0.2."""
    mean = torch.randn(K, D, generator=torch.Generator().manual_seed(2), dtype=dtype)
    prior = dist.Normal(torch.tensor(0.2, dtype=dtype), torch.tensor(scale, dtype=dtype))
    return DenseNormal(mean, scale_tril=factor(dtype)), prior.expand([K, D]).to_event(1)


def test_the_divergence_is_that_of_two_dense_distributions() -> None:
    q, p = pair()
    dense = torch.distributions.MultivariateNormal(p.mean, 0.7**2 * torch.eye(D, dtype=torch.float64))
    plain = torch.distributions.MultivariateNormal(q.loc, q.covariance_matrix)
    assert_close(kl_divergence(q, p), kl_divergence(plain, dense))
    assert kl_divergence(q, p).shape == (K,)


def test_the_distribution_that_is_its_prior_has_no_divergence() -> None:
    prior = dist.Normal(torch.zeros(()), torch.tensor(0.3)).expand([K, D]).to_event(1)
    q = DenseNormal(torch.zeros(K, D), scale_tril=0.3 * torch.eye(D).expand(K, D, D))
    assert_close(kl_divergence(q, prior), torch.zeros(K), rtol=0, atol=1e-6)


def test_other_priors_are_refused() -> None:
    q, _ = pair(dtype=torch.float32)
    with pytest.raises(MissingKLError, match="Laplace prior"):
        kl_divergence(q, dist.Laplace(torch.zeros(K, D), torch.ones(K, D)).to_event(1))
    with pytest.raises(MissingKLError):
        kl_divergence(q, dist.Normal(torch.zeros(K, D), torch.ones(K, D)).to_event(2))
    assert has_analytic_kl(*pair())


@pytest.mark.parametrize("local", [False, True])
def test_draws_by_address_have_its_covariance(local: bool) -> None:
    """Of a distribution that all rows share, and of one a row and token: draws x rows x tokens."""
    q, _ = pair(dtype=torch.float32)
    count = 20_000
    addresses = CounterNoise(3, torch.arange(count), ("a", "b"), torch.arange(K).expand(2, -1))
    draws = addresses.draw_global("w", q)
    if local:
        draws = addresses.draw_local("w", q.expand([2, K]))
        assert draws.shape == (count, 2, K, D)
        assert not torch.equal(draws[:, 0], draws[:, 1])
        draws = draws[:, 1]
    for row in range(K):
        cov = q.covariance_matrix[row]
        sizes = cov.diagonal()
        error = ((sizes[:, None] * sizes + cov.square()) / count).sqrt()
        assert ((torch.cov(draws[:, row].T) - cov).abs() < 5 * error).all()
        first = (draws[:, row, 0] - q.loc[row, 0]) / sizes[0].sqrt()
        assert stats.kstest(first.numpy(), "norm").pvalue > 1e-3

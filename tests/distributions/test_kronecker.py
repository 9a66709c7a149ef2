"""The matrix normal of Kronecker-factored curvature, against the dense covariance of all its entries."""

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.distributions.normal import KroneckerNormal

M, N, SIZE = 3, 2, 5
PRECISION = torch.tensor(0.7, dtype=torch.float64)
ROWS = torch.tensor([4, 0, 2])


def factor(n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(n, n + 2, generator=generator, dtype=torch.float64)
    return a @ a.T


def distribution(rows: Tensor | None = None) -> tuple[KroneckerNormal, Tensor]:
    """The distribution, and the dense covariance of its entries, row by row."""
    left, right = factor(M, 1), factor(N, 2)
    (f, u), (g, v) = torch.linalg.eigh(left), torch.linalg.eigh(right)
    precision = torch.kron(left, right) + PRECISION * torch.eye(M * N, dtype=torch.float64)
    covariance = torch.linalg.inv(precision)
    if rows is None:
        return KroneckerNormal(u, f, v, g, PRECISION), covariance
    whole = torch.eye(SIZE * N, dtype=torch.float64) / PRECISION
    places = (rows[:, None] * N + torch.arange(N)).flatten()
    whole[places[:, None], places] = covariance
    return KroneckerNormal(u, f, v, g, PRECISION, rows=rows, size=SIZE), whole


@pytest.mark.parametrize("rows", [None, ROWS], ids=["all rows", "some rows"])
def test_noise_becomes_a_draw_of_the_dense_covariance(rows: Tensor | None) -> None:
    """`of_noise` is linear: what it makes of every unit of noise is a factor of the covariance."""
    q, covariance = distribution(rows)
    entries = q.event_shape.numel()
    assert q.event_shape == ((M, N) if rows is None else (SIZE, N))
    units = torch.eye(entries, dtype=torch.float64).reshape(entries, *q.event_shape)
    images = q.of_noise(units).reshape(entries, entries)
    assert_close(images.T @ images, covariance)


@pytest.mark.parametrize("rows", [None, ROWS], ids=["all rows", "some rows"])
def test_density(rows: Tensor | None) -> None:
    q, covariance = distribution(rows)
    values = torch.randn(4, *q.event_shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    truth = stats.multivariate_normal(cov=covariance.numpy()).logpdf(values.flatten(1).numpy())
    assert_close(q.log_prob(values), torch.as_tensor(truth))


@pytest.mark.parametrize("rows", [None, ROWS], ids=["all rows", "some rows"])
def test_a_batch_is_drawn_independently_around_zero(rows: Tensor | None) -> None:
    q, covariance = distribution(rows)
    torch.manual_seed(4)
    batch = q.expand([20_000])
    assert (batch.batch_shape, batch.event_shape) == ((20_000,), q.event_shape)
    assert_close(batch.mean, torch.zeros(20_000, *q.event_shape, dtype=torch.float64))
    drawn = batch.rsample((2,)).flatten(2)
    assert drawn.shape[:2] == (2, 20_000)
    flat = drawn.flatten(0, 1)
    found = flat.T @ flat / len(flat)
    variances = covariance.diagonal()
    error = ((variances[:, None] * variances + covariance.square()) / len(flat)).sqrt()
    assert ((found - covariance).abs() < 5 * error).all()
    assert q.expand([2]).log_prob(torch.zeros(2, *q.event_shape, dtype=torch.float64)).shape == (2,)
    assert_close(q.expand([1]).precision, PRECISION)


def test_values_in_half_the_digits_of_the_curvature() -> None:
    (f, u), (g, v) = torch.linalg.eigh(factor(M, 1)), torch.linalg.eigh(factor(N, 2))
    q = KroneckerNormal(u.float(), f, v.float(), g, PRECISION)
    assert q.scale.dtype == q.rsample().dtype == torch.float32
    assert_close(q.scale.double(), distribution()[0].scale, rtol=1e-6, atol=0)


def test_draws_are_made_where_the_curvature_is() -> None:
    """On the device without data, so that a machine without a GPU sees it."""
    u, f, v, g = (torch.empty(size, device="meta") for size in ((M, M), (M,), (N, N), (N,)))
    q = KroneckerNormal(u, f, v, g, torch.empty((), device="meta"))
    assert q.rsample((2,)).device.type == "meta"

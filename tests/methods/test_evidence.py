"""The log evidence: against quadrature where it is exact, against determinants, and its maximum."""

import math

import pytest
import torch
from torch import Tensor

from bara_pyro.methods.laplace import (
    HIGHEST,
    LOWEST,
    best_precision,
    effective_parameters,
    log_evidence,
)

CURVATURE = torch.tensor([[6.0, 2.0], [2.0, 1.5]], dtype=torch.float64)
CENTRE = torch.tensor([0.8, -1.1], dtype=torch.float64)  # where the likelihood is largest
PEAK = -3.0  # its logarithm there


def quadrature(precision: float, log_likelihood) -> float:
    """log of the integral of likelihood times prior over two weights, by the trapezoid rule."""
    line = torch.linspace(-9, 9, 301, dtype=torch.float64)
    theta = torch.cartesian_prod(line, line)
    log_prior = -0.5 * precision * theta.square().sum(-1) + math.log(precision / (2 * math.pi))
    step = 2 * math.log(float(line[1] - line[0]))
    return float((log_likelihood(theta) + log_prior).logsumexp(0)) + step


def gaussian(theta: Tensor) -> Tensor:
    d = theta - CENTRE
    return PEAK - 0.5 * torch.einsum("...i,ij,...j->...", d, CURVATURE, d)


@pytest.mark.parametrize("precision", [0.3, 7.0])
def test_exact_for_a_gaussian_likelihood(precision: float) -> None:
    """At the posterior's mode the approximation is the integral itself."""
    mode = torch.linalg.solve(CURVATURE + precision * torch.eye(2), CURVATURE @ CENTRE)
    eigenvalues = torch.linalg.eigvalsh(CURVATURE)
    ours = log_evidence(float(gaussian(mode)), eigenvalues, float(mode.square().sum()), precision)
    assert ours == pytest.approx(quadrature(precision, gaussian), abs=1e-6)


def spectrum() -> Tensor:
    torch.manual_seed(0)
    return torch.cat([torch.randn(300, dtype=torch.float64).exp() ** 3, torch.zeros(50).double()])


@pytest.mark.parametrize("norm", [0.01, 500.0])
def test_the_precision_found_has_the_greatest_evidence(norm: float) -> None:
    mu = spectrum()
    found = best_precision(mu, norm)
    top = log_evidence(0.0, mu, norm, found)
    grid = torch.logspace(-6, 9, 3001, dtype=torch.float64).tolist()
    values = [log_evidence(0.0, mu, norm, precision) for precision in grid]
    best = grid[max(range(len(grid)), key=values.__getitem__)]
    assert top >= max(values)
    assert found == pytest.approx(best, rel=0.013)  # the grid's spacing
    # MacKay's fixed point: lambda = gamma / |theta|^2.
    assert effective_parameters(mu, found) == pytest.approx(found * norm, rel=1e-8)


def test_precisions_beyond_the_range_stop_at_its_end() -> None:
    assert best_precision(spectrum(), 0.0) == pytest.approx(HIGHEST, rel=1e-6)
    assert best_precision(torch.zeros(3).double(), 1.0) == pytest.approx(LOWEST, rel=1e-6)

"""Sparsity as the paper counts it."""

import math

import pytest
import torch

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.metrics import sparsity


def test_counts_absolute_values_strictly_below_tau():
    assert sparsity(torch.tensor([0.05, -0.05, 0.1, -0.1, 0.0, 3.0, -3.0, 0.099])) == 50.0
    assert sparsity(torch.tensor([[0.4, 0.6], [-0.4, 2.0]]), tau=0.5) == 50.0
    assert sparsity([0.0, 0.0]) == 100.0
    assert sparsity([0.0], tau=0.0) == 0.0


def test_a_product_of_gates_is_at_least_as_sparse_as_one_gate_below_one():
    generator = torch.Generator().manual_seed(0)
    phi, theta = torch.rand(2, 500, generator=generator)
    assert sparsity(phi * theta) >= max(sparsity(phi), sparsity(theta))


def test_matches_the_closed_form_of_an_exponential():
    z = torch.distributions.Exponential(1.0).icdf((torch.arange(10_000) + 0.5) / 10_000)
    assert sparsity(z) == pytest.approx(100 * (1 - math.exp(-0.1)), abs=0.02)


def test_unusable_input():
    with pytest.raises(DataError, match="empty"):
        sparsity(torch.zeros(0))
    with pytest.raises(DataError, match="NaN"):
        sparsity(torch.tensor([math.nan]))
    with pytest.raises(ConfigError, match="tau"):
        sparsity(torch.zeros(1), tau=-0.1)

"""Random signs and exponential noise: the draws of torch's own functions, and the distribution."""

import math

import pytest
import torch

from bara_pyro.core.distributions import MeanWeibull, Signs
from bara_pyro.core.distributions.weibull import exponential
from bara_pyro.core.from_uniform import from_uniform

SHAPE = (3, 5, 1001)


def state_after(draw) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return draw(), torch.get_rng_state()


def test_signs_are_the_coins_of_torch_with_the_same_seed():
    signs, after = state_after(Signs(SHAPE, "cpu").sample)
    coins, expected = state_after(lambda: torch.bernoulli(torch.full(SHAPE, 0.5)))
    assert torch.equal(signs, 2 * coins - 1)
    assert torch.equal(after, expected)


def test_exponential_noise_is_that_of_torch_with_the_same_seed():
    for dtype in (torch.float32, torch.float64):
        noise, after = state_after(lambda dtype=dtype: exponential(torch.ones(1, dtype=dtype), SHAPE))
        expected, state = state_after(lambda dtype=dtype: torch.empty(SHAPE, dtype=dtype).exponential_())
        assert noise.dtype == dtype
        assert torch.allclose(noise, expected, rtol=2 * torch.finfo(dtype).eps, atol=0)
        assert torch.equal(after, state)


def test_a_generator_that_returns_zero_does_no_harm(monkeypatch):
    monkeypatch.setattr(torch, "rand", torch.zeros)
    kappa = torch.tensor([0.01, 1.0, 5.0], requires_grad=True)
    draws = MeanWeibull(torch.ones(3), kappa).rsample()
    draws.sum().backward()
    assert (draws > 0).all()
    assert kappa.grad.isfinite().all()


def test_a_sign_is_decided_at_one_half():
    numbers = torch.tensor([0.0, 0.5 - 2**-24, 0.5, 1 - 2**-24])
    assert from_uniform(Signs([4], "cpu"), lambda _: numbers.clone()).tolist() == [1, 1, -1, -1]


def test_shapes_mean_and_density_of_signs():
    signs = Signs([2, 1], "cpu").expand([2, 3]).to_event(1)
    value = signs.sample((4,))
    assert value.shape == (4, 2, 3)
    assert signs.mean.tolist() == [[0, 0, 0]] * 2
    assert signs.log_prob(value[0]).tolist() == pytest.approx([-3 * math.log(2)] * 2)
    assert signs.log_prob(value).shape == (4, 2)


def test_draws_are_on_the_device_asked_for_whatever_the_default():
    with torch.device("meta"):
        drawn = [Signs([2], "cpu").sample(), exponential(torch.ones(1, device="cpu"), [2])]
    assert [draw.device.type for draw in drawn] == ["cpu", "cpu"]

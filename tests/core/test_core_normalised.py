"""A linear map of an input without its size, against the formula and autograd."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.normalised import NORM_MIN, normalised_linear


def written_out(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rms = x.square().sum(-1, keepdim=True).sqrt().clamp_min(NORM_MIN) / x.shape[-1] ** 0.5
    return (x / rms) @ weight.T + bias


def example(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(6)
    x = torch.randn(*shape, 5, dtype=torch.float64)
    return x, torch.randn(4, 5, dtype=torch.float64), torch.randn(4, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e-8])
def test_value_and_gradient(shape: tuple[int, ...], scale: float) -> None:
    x, weight, bias = example(*shape)
    x, weight = (scale * x).requires_grad_(), weight.requires_grad_()
    found, truth = normalised_linear(x, weight, bias), written_out(x, weight, bias)
    assert_close(found, truth)
    pull = torch.randn_like(truth)
    ours, theirs = (torch.autograd.grad((pull * out).sum(), (x, weight)) for out in (found, truth))
    assert_close(ours, theirs)


def test_gradcheck() -> None:
    x, weight, bias = example(3)
    inputs = x.requires_grad_(), weight.requires_grad_(), bias
    assert torch.autograd.gradcheck(normalised_linear, inputs)


def test_zeros_stay_zeros() -> None:
    _, weight, bias = example(3)
    x = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    out = normalised_linear(x, weight.requires_grad_(), bias)
    assert_close(out, bias.expand(2, 4))
    out.sum().backward()
    assert x.grad.isfinite().all()


def test_an_input_without_gradient() -> None:
    x, weight, bias = example(3)
    normalised_linear(x, weight.requires_grad_(), bias).sum().backward()
    assert weight.grad.abs().sum() > 0
    assert x.grad is None

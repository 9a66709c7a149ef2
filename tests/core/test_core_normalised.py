"""A linear map of an input without its size, against the formula and autograd."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.normalised import NORM_MIN, normalised_linear


def written_out(x: Tensor, weights: list[Tensor], bias: Tensor, plain: list[Tensor]) -> tuple[Tensor, ...]:
    rms = x.square().sum(-1, keepdim=True).sqrt().clamp_min(NORM_MIN) / x.shape[-1] ** 0.5
    first = torch.stack([(x / rms) @ weight.T + bias for weight in weights], dim=-2)
    return first, *(x @ weight.T for weight in plain)


def example(*shape: int, gates: int = 1, plain: tuple[int, ...] = ()) -> tuple:
    torch.manual_seed(6)

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(*sizes, dtype=torch.float64).requires_grad_()

    weights = [drawn(4, 5) for _ in range(gates)]
    return drawn(*shape, 5), weights, drawn(4).detach(), [drawn(rows, 5) for rows in plain]


@pytest.mark.parametrize(("gates", "plain"), [(1, ()), (2, ()), (1, (3,)), (2, (3, 2))])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e-8])
def test_value_and_gradient(shape: tuple[int, ...], scale: float, gates: int, plain: tuple[int, ...]) -> None:
    x, weights, bias, others = example(*shape, gates=gates, plain=plain)
    x = (scale * x.detach()).requires_grad_()
    found, truth = (f(x, weights, bias, others) for f in (normalised_linear, written_out))
    assert_close(found, truth)
    pulls = [torch.randn_like(out) for out in truth]
    ours, theirs = (
        torch.autograd.grad(
            sum((pull * out).sum() for pull, out in zip(pulls, outs, strict=True)), (x, *weights, *others)
        )
        for outs in (found, truth)
    )
    assert_close(ours, theirs)


def test_gradcheck() -> None:
    x, weights, bias, others = example(3, gates=2, plain=(2,))
    assert torch.autograd.gradcheck(
        lambda x, *w: normalised_linear(x, w[:2], bias, w[2:]), (x, *weights, *others)
    )


def test_an_output_that_nothing_uses_has_no_gradient() -> None:
    x, weights, bias, others = example(3, plain=(2, 2))
    first, _, last = normalised_linear(x, weights, bias, others)
    (first.sum() + last.sum()).backward()
    assert_close(others[0].grad, torch.zeros_like(others[0]))
    assert others[1].grad.abs().sum() > 0


def test_zeros_stay_zeros() -> None:
    _, weights, bias, _ = example(3)
    x = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    (out,) = normalised_linear(x, weights, bias)
    assert_close(out, bias.expand(2, 1, 4))
    out.sum().backward()
    assert x.grad.isfinite().all()


def test_an_input_without_gradient() -> None:
    x, weights, bias, others = example(3, plain=(2,))
    x = x.detach()
    sum(out.sum() for out in normalised_linear(x, weights, bias, others)).backward()
    assert weights[0].grad.abs().sum() > 0
    assert others[0].grad.abs().sum() > 0
    assert x.grad is None

"""What autograd keeps for the gates of BaRA, and gradients equal to those of plain formulas."""

import math
from collections.abc import Callable

import pyro.distributions as dist
import pytest
import torch
from core_cases import bara_pair, make_batch, trainer
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import kl_divergence
from torch.nn import functional as F

from bara_pyro.core.distributions import KAPPA_MIN, MEAN_MIN, bounded_softplus
from bara_pyro.guides.weibull import WeibullGuide

R = 4
EULER = 0.5772156649015329


def f64(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*shape, dtype=torch.float64, generator=generator)).requires_grad_()


def inside(value: Tensor, low: float, high: float) -> Tensor:
    """A clamp through which gradients pass that lead back inside."""
    bounded = value.detach().clamp(low, high).requires_grad_()

    def back(grad: Tensor) -> Tensor:
        below, above = value.detach() < low, value.detach() > high
        return torch.where((below & (grad > 0)) | (above & (grad < 0)), 0.0, grad)

    passing = value + (bounded - value).detach()
    if passing.requires_grad:
        passing.register_hook(back)
    return passing


@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_the_normalised_amortiser(size: float) -> None:
    guide = WeibullGuide(bara_pair(r=R, form="gate")[0])
    guide.start = guide.start.double()
    x, weight = f64(2, 3, 16, scale=size), f64(2 * R, 16, seed=1)
    assert gradcheck(lambda x, weight: guide._amortised(weight, R, x), (x, weight))
    normalised = x / x.square().mean(-1, keepdim=True).sqrt()
    assert torch.allclose(guide._amortised(weight, R, x), normalised @ weight.T + guide.start)


def test_an_input_of_zeros_has_the_gradient_of_a_product() -> None:
    guide = WeibullGuide(bara_pair(r=R, form="gate")[0])
    x, weight = torch.zeros(1, 2, 16, requires_grad=True), torch.randn(2 * R, 16)
    guide._amortised(weight, R, x).sum().backward()
    assert torch.allclose(x.grad, (weight.sum(0) * 4 / 1e-6).expand(1, 2, 16))


@pytest.mark.parametrize("levels", [R, 1, 0])
def test_the_softplus_within_bounds(levels: int) -> None:
    raw = f64(5, R + levels)
    assert gradcheck(lambda raw: bounded_softplus(raw, R, KAPPA_MIN, 9.0), (raw,))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_softplus_beyond_bounds(sign: float) -> None:
    """Raw values below the mean's bound, inside, and on both sides of the noise level's."""
    raw = torch.tensor([-30.0, -19.0, 0.3, 40.0, -9.0, -0.5, 0.9, 30.0], dtype=torch.float64).requires_grad_()
    found = torch.autograd.grad(
        torch.cat(bounded_softplus(raw, R, KAPPA_MIN, 1.0)), raw, torch.full((8,), sign).double()
    )[0]
    mean, kappa = F.softplus(raw).split(R)
    plain = torch.cat([inside(mean, MEAN_MIN, math.inf), inside(kappa, KAPPA_MIN, 1.0)])
    truth = torch.autograd.grad(plain, raw, torch.full((8,), sign).double())[0]
    assert torch.allclose(found, truth, rtol=1e-8, atol=0)
    assert (found == 0).tolist() == [sign > 0] * 2 + [False] * 2 + [sign > 0, False] + [sign < 0] * 2


def plain_gate(x: Tensor, weight: Tensor, start: Tensor, a: float, b: float) -> tuple[Tensor, Tensor]:
    """Draw and KL of one layer's gate by the formulas of the paper, with the library's noise."""
    z = x / x.square().mean(-1, keepdim=True).sqrt()
    mean, kappa = F.softplus(z @ weight.T + start).split(R, -1)
    mean, kappa = inside(mean, MEAN_MIN, math.inf), inside(kappa, KAPPA_MIN, 1.0)
    log_gamma = torch.lgamma(1 + kappa)
    energy = -torch.log1p(-torch.rand(mean.shape, dtype=torch.float64)).to(mean.dtype)
    value = mean * (kappa * energy.log() - log_gamma).exp()
    kl = EULER * (a * kappa - 1) - kappa.log() + b * mean - 1 - a * ((b * mean).log() - log_gamma)
    return value, kl + math.lgamma(a)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
@pytest.mark.parametrize("offset", [0.0, -4.5, 1.5])  # noise levels inside, partly below and partly above
def test_gradients_of_a_gate(dtype: torch.dtype, tolerance: float, offset: float) -> None:
    guide = WeibullGuide(bara_pair(r=R, form="gate")[0])
    guide.start = guide.start.to(dtype) + torch.cat([torch.zeros(R), torch.full((R,), offset)]).to(dtype)
    inputs = [value.detach().to(dtype).requires_grad_() for value in (f64(2, 3, 16), f64(2 * R, 16, seed=1))]
    prior = dist.Gamma(torch.tensor(0.7, dtype=dtype), torch.tensor(1.3, dtype=dtype))

    def ours(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        q = guide.posterior(weight, R, x)
        return q.rsample(), kl_divergence(q, prior.expand([2, 3, R]).to_event(1))

    def plain(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        value, kl = plain_gate(x, weight, guide.start, 0.7, 1.3)
        return value, kl.sum(-1)

    def gradients(gate: Callable) -> list[Tensor]:
        torch.manual_seed(3)
        value, kl = gate(*inputs)
        loss = (value.sin() * torch.linspace(-1, 1, R, dtype=dtype)).sum() + (0.3 * kl).sum()
        return [value, kl, *torch.autograd.grad(loss, inputs)]

    for got, truth in zip(gradients(ours), gradients(plain), strict=True):
        assert float(((got - truth).norm() / truth.norm()).detach()) < tolerance


# Per token, module and unit: raw mean and noise level, both bounded, noise, draw, input of B; the gate, A x.
@pytest.mark.parametrize(("form", "numbers"), [("additive", 7), ("gate", 9)])
def test_numbers_kept_for_the_backward_pass(form: str, numbers: int) -> None:
    r = 20  # no width of the language model
    pair = bara_pair(r=r, form=form, target_modules=["q_proj"])
    svi, batch = trainer(pair), make_batch()
    tokens = batch.input_ids.numel()
    kept: dict[int, Tensor] = {}  # by storage; kept alive, so that no address is used twice

    def keep(value: Tensor) -> Tensor:
        if value.shape[-1:].numel() in (r, 2 * r) and value.shape[:-1].numel() == tokens:
            kept[value.untyped_storage().data_ptr()] = value
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        svi.terms(batch)
    bytes_kept = sum(value.untyped_storage().nbytes() for value in kept.values())
    assert bytes_kept <= numbers * 4 * r * tokens * len(pair[0].targets)
    assert bytes_kept >= 4 * 4 * r * tokens * len(pair[0].targets)  # the test sees them

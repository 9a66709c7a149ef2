"""Gates drawn in one node: against the formula written out, autograd through it, and each gate by itself."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from bara_pyro.core.distributions import KAPPA_MIN, MEAN_MIN, MeanWeibull, RawGates
from bara_pyro.core.distributions.drawn import drawn_gate

R, MAX = 3, 1.5


def raw_values(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return (scale * torch.randn(*shape, 2 * R, generator=generator, dtype=torch.float64)).to(dtype)


def energies(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.empty(*shape, R, dtype=torch.float64).exponential_(generator=generator)


def written_out(raw: Tensor, energy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Inside the bounds: m E^kappa / Gamma(1 + kappa)."""
    mean, kappa = (1 + raw.exp()).log().split(R, dim=-1)
    return mean * energy**kappa / torch.exp(torch.lgamma(1 + kappa)), mean, kappa


@pytest.mark.parametrize("shape", [(), (4,), (2, 5, 4)])
def test_value_and_gradient_are_those_of_the_formula(shape: tuple[int, ...]) -> None:
    raw, energy = raw_values(*shape).requires_grad_(), energies(*shape)
    truth = written_out(raw, energy)
    assert truth[2].min() > KAPPA_MIN
    assert truth[2].max() < 4
    found = drawn_gate(raw, energy.log(), 4.0)
    for ours, theirs in zip(found, truth, strict=True):
        assert_close(ours, theirs, rtol=1e-12, atol=0)
    weights = [raw_values(*shape)[..., i : i + R] for i in range(3)]
    losses = [sum((w * v).sum() for w, v in zip(weights, out, strict=True)) for out in (found, truth)]
    ours, theirs = (torch.autograd.grad(loss, raw)[0] for loss in losses)
    assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_gradcheck() -> None:
    raw, log_energy = raw_values(4).requires_grad_(), energies(4).log()
    assert torch.autograd.gradcheck(lambda raw: drawn_gate(raw, log_energy, 4.0), raw)


@pytest.mark.parametrize("inward", [False, True])
def test_outside_its_bounds_a_parameter_moves_only_back(inward: bool) -> None:
    raw = torch.tensor([[-30.0, 0.0, 0.0, -9.0, 3.0, 0.0]], dtype=torch.float64, requires_grad=True)
    _, mean, kappa = drawn_gate(raw, energies(1).log(), MAX)
    assert mean[0, 0].item() == MEAN_MIN
    assert (kappa[0, 0].item(), kappa[0, 1].item()) == (KAPPA_MIN, MAX)
    # Descent on `sign * kappa`: what is too small comes back where the sign is negative, too large: positive.
    signs = torch.tensor([-1.0, 1.0, 1.0] if inward else [1.0, -1.0, 1.0], dtype=torch.float64)
    (signs * kappa).sum().add(signs[0] * mean[0, 0]).backward()
    moved = raw.grad[0, [0, 3, 4, 5]] != 0
    assert moved.tolist() == [inward, inward, inward, True]


def test_what_passes_a_bound_is_the_sum_of_both_gradients() -> None:
    """The draw pulls inside, another term pulls out: the stronger one decides."""
    raw = torch.zeros(1, 2 * R, dtype=torch.float64)
    raw[0, R:] = 3.0
    energy = torch.full((1, R), 5.0, dtype=torch.float64)
    slope = energy.log() - torch.digamma(torch.tensor(1 + MAX, dtype=torch.float64))
    for pull, expected in ((0.5, True), (2.0, False)):
        raw.grad = None
        value, _, kappa = drawn_gate(raw.requires_grad_(), energy.log(), MAX)
        assert (slope > 0).all()
        (value - pull * (value.detach() * slope) * kappa).sum().backward()
        assert (raw.grad[0, R:] != 0).all() if expected else (raw.grad[0, R:] == 0).all(), pull


@pytest.mark.parametrize("log_energy", [-87.0, 4.0])
def test_extreme_noise_leaves_draws_and_gradients_finite(log_energy: float) -> None:
    raw = torch.tensor([[-90.0, 30.0, -20.0, 9.0, 9.0, -90.0]], requires_grad=True)
    value, _, _ = drawn_gate(raw, torch.full((1, R), log_energy), 5.0)
    assert (value > 0).all()
    value.sum().backward()
    assert raw.grad.isfinite().all()


def distributions(raw: Tensor) -> list[MeanWeibull]:
    gates = RawGates(raw, MAX)
    return [MeanWeibull.from_raw(gates, index) for index in range(raw.shape[-2])]


def test_together_is_each_by_itself() -> None:
    """The same numbers of the generator, the same draws, the same gradient."""
    raw = raw_values(2, 5, 3, scale=2.0, dtype=torch.float32).requires_grad_()
    torch.manual_seed(0)
    joint = distributions(raw)
    found = [
        torch.cat([distribution.rsample(), distribution.mean, distribution.kappa], dim=-1)
        for distribution in joint
    ]
    torch.manual_seed(0)
    truth = []
    for index in range(3):
        level = F.softplus(raw[..., index, :])
        distribution = MeanWeibull(level[..., :R].clamp_min(MEAN_MIN), level[..., R:].clamp(KAPPA_MIN, MAX))
        truth.append(torch.cat([distribution.rsample(), distribution.mean, distribution.kappa], dim=-1))
    assert_close(torch.stack(found), torch.stack(truth), rtol=1e-6, atol=0)
    inside = ((F.softplus(raw) > KAPPA_MIN) & (F.softplus(raw) < MAX)) | (torch.arange(2 * R) < R)
    ours, theirs = (torch.autograd.grad(torch.stack(values).sum(), raw)[0] for values in (found, truth))
    assert inside.float().mean() > 0.5
    assert_close(ours[inside], theirs[inside], rtol=1e-5, atol=1e-5)


def test_a_distribution_whose_parameters_were_asked_for_first_draws_by_itself() -> None:
    raw = raw_values(5, 2).requires_grad_()
    first, second = distributions(raw)
    assert_close(first.mean, F.softplus(raw[..., 0, :R]).clamp_min(MEAN_MIN))
    torch.manual_seed(1)
    draws = first.rsample(), second.rsample()
    torch.manual_seed(1)
    for distribution, draw in zip((first, second), draws, strict=True):
        plain = MeanWeibull(distribution.mean, distribution.kappa)
        assert_close(draw, plain.rsample(), rtol=1e-12, atol=0)
        assert distribution.batch_shape == (5, R)


def test_a_second_draw_is_another_one() -> None:
    distribution = distributions(raw_values(5, 1))[0]
    one, two = distribution.rsample(), distribution.rsample()
    assert not torch.equal(one, two)
    assert distribution.rsample((7,)).shape == (7, 5, R)
    assert distribution.expand((2, 5, R)).rsample().shape == (2, 5, R)


def test_the_smallest_number_is_no_draw_of_zero() -> None:
    assert math.isfinite(float(distributions(torch.full((1, 1, 2 * R), -200.0))[0].rsample().log().min()))

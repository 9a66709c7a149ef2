import pytest
import torch

from bara_pyro.core.distributions import KAPPA_MAX, KAPPA_MIN, MEAN_MIN, MeanWeibull, bound_kappa, bound_mean


def test_identity_inside_and_clamped_outside():
    kappa = torch.tensor([0.0, KAPPA_MIN, 0.7, KAPPA_MAX, 9.0])
    assert torch.equal(bound_kappa(kappa), kappa.clamp(KAPPA_MIN, KAPPA_MAX))
    assert torch.equal(bound_mean(torch.tensor([0.0, 3.0])), torch.tensor([MEAN_MIN, 3.0]))


@pytest.mark.parametrize(
    ("kappa", "sign", "expected"),
    [(0.001, 1, 0), (0.001, -1, -1), (0.7, 1, 1), (0.7, -1, -1), (9.0, 1, 1), (9.0, -1, 0)],
)
def test_gradient_passes_only_inwards(kappa, sign, expected):
    value = torch.tensor(kappa, requires_grad=True)
    (sign * bound_kappa(value)).backward()
    assert value.grad == expected


def test_mean_gradient_passes_only_upwards():
    value = torch.tensor([0.0, 0.0], requires_grad=True)
    (bound_mean(value) * torch.tensor([1.0, -1.0])).sum().backward()
    assert value.grad.tolist() == [0.0, -1.0]


@pytest.mark.parametrize("start", [-7.0, 12.0])
def test_a_unit_outside_the_range_comes_back(start):
    """The KL's optimum against Gamma(1, 1) is kappa = 1; a plain clamp would leave both where they are."""
    raw = torch.tensor(start, requires_grad=True)
    prior = torch.distributions.Gamma(torch.tensor(1.0), torch.tensor(1.0))
    optimiser = torch.optim.Adam([raw], lr=0.1)
    for _ in range(400):
        optimiser.zero_grad()
        q = MeanWeibull(torch.tensor(1.0), bound_kappa(torch.nn.functional.softplus(raw)))
        torch.distributions.kl_divergence(q, prior).backward()
        optimiser.step()
    assert torch.nn.functional.softplus(raw).item() == pytest.approx(1.0, abs=0.02)

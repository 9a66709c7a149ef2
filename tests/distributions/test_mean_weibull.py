import math

import numpy as np
import pytest
import torch
from scipy import stats

from bara_pyro.core.distributions import KAPPA_MAX, KAPPA_MIN, MEAN_MIN, MeanWeibull, bound_kappa, bound_mean

KAPPAS = [0.01, 0.05, 0.3, math.log(2), 1.0, 2.0, 5.0]
MEANS = [1e-8, 0.3, 1.0, 1e4]
GRID = [(mean, kappa) for mean in MEANS for kappa in KAPPAS]


def f64(value):
    return torch.tensor(value, dtype=torch.float64)


def reference(mean, kappa):
    return stats.weibull_min(1 / kappa, scale=mean / math.gamma(1 + kappa))


@pytest.mark.parametrize(("mean", "kappa"), GRID)
def test_matches_scipy(mean, kappa):
    q, truth = MeanWeibull(f64(mean), f64(kappa)), reference(mean, kappa)
    quantiles = np.array([0.01, 0.3, 0.5, 0.9, 0.999])
    t = truth.ppf(quantiles)
    np.testing.assert_allclose(q.icdf(f64(quantiles)), t, rtol=1e-9)
    np.testing.assert_allclose(q.cdf(f64(t)), quantiles, rtol=1e-9)
    np.testing.assert_allclose(q.log_prob(f64(t)), truth.logpdf(t), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(q.entropy(), truth.entropy(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(q.mean, truth.mean(), rtol=1e-12)
    # scipy forms Gamma(1 + 2 kappa) - Gamma(1 + kappa)^2, which loses four digits at kappa = 0.01.
    np.testing.assert_allclose(q.variance, truth.var(), rtol=1e-9)
    np.testing.assert_allclose(q.stddev, truth.std(), rtol=1e-9)


def test_variance_overflows_no_earlier_than_its_value():
    q = MeanWeibull(torch.tensor(1e-3), torch.tensor(20.0))  # Gamma(1 + 40) alone is 8e47
    expected = 1e-6 * (math.gamma(41) / math.gamma(21) ** 2 - 1)
    torch.testing.assert_close(q.variance, torch.tensor(expected), rtol=1e-4, atol=0)
    assert MeanWeibull(torch.tensor(1e-30), torch.tensor(1.0)).stddev == pytest.approx(1e-30)


def test_mode_is_where_the_density_peaks():
    q = MeanWeibull(f64(0.7), f64(0.4))
    grid = torch.linspace(0.01, 3, 100_001, dtype=torch.float64)
    assert grid[q.log_prob(grid).argmax()] == pytest.approx(q.mode.item(), abs=1e-4)
    assert MeanWeibull(f64(0.7), f64([1.0, 3.0])).mode.tolist() == [0.0, 0.0]


def test_small_draws_are_as_frequent_as_they_should_be():
    """Noise that is cut off far from 0 passes a test of the whole distribution."""
    torch.manual_seed(0)
    draws, share = MeanWeibull(torch.ones(200_000), torch.tensor(1.0)).rsample(), -math.expm1(-5e-4)
    error = math.sqrt(share / len(draws))
    assert (draws < 5e-4).float().mean().item() == pytest.approx(share, abs=5 * error)


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_goodness_of_fit(kappa, dtype):
    q = MeanWeibull(torch.tensor(0.3, dtype=dtype), torch.tensor(kappa, dtype=dtype))
    draws = q.sample((20_000,))
    assert draws.dtype == dtype
    # 14 cases at 1e-4: one seed in 700 would fail by chance.
    assert stats.kstest(draws.double().numpy(), reference(0.3, kappa).cdf).pvalue > 1e-4


def test_gradients_against_finite_differences():
    mean = f64([0.2, 1.0, 3.0]).requires_grad_()
    kappa = f64([0.05, 0.7, 4.0]).requires_grad_()
    value = f64([0.21, 0.4, 0.5]).requires_grad_()

    def draw(mean, kappa):
        torch.manual_seed(1)
        return MeanWeibull(mean, kappa).rsample()

    def draw_many(mean, kappa):
        torch.manual_seed(1)
        return MeanWeibull(mean, kappa).expand([2, 3]).rsample((4,))

    assert torch.autograd.gradcheck(draw, (mean, kappa))
    assert torch.autograd.gradcheck(draw_many, (mean, kappa))
    assert torch.autograd.gradcheck(lambda m, k, t: MeanWeibull(m, k).log_prob(t), (mean, kappa, value))
    assert torch.autograd.gradcheck(lambda m, k: MeanWeibull(m, k).entropy(), (mean, kappa))
    assert torch.autograd.gradcheck(lambda m, k: MeanWeibull(m, k).variance, (mean, kappa))


@pytest.mark.parametrize("mean", [1e-8, 1e4])
@pytest.mark.parametrize("kappa", [0.01, 5.0])
def test_float32_extremes_are_finite_with_finite_gradients(mean, kappa):
    m = torch.full((100_000,), mean, requires_grad=True)
    k = torch.full((100_000,), kappa, requires_grad=True)
    q = MeanWeibull(m, k)
    draws = q.rsample()
    assert (draws > 0).all()
    assert q.log_prob(draws.detach()).isfinite().all()
    for value in [draws, q.log_prob(draws), q.entropy(), q.variance, q.stddev]:
        assert value.isfinite().all()
        for gradient in torch.autograd.grad(value.sum(), (m, k), retain_graph=True):
            assert gradient.isfinite().all()


def test_half_precision_parameters_are_widened():
    q = MeanWeibull(torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16))
    assert q.rsample().dtype == torch.float32


def test_shapes():
    q = MeanWeibull(torch.rand(4, 1) + 0.1, torch.rand(3) + 0.1)
    assert q.batch_shape == (4, 3)
    assert q.event_shape == ()
    assert q.rsample((5, 2)).shape == (5, 2, 4, 3)
    assert q.log_prob(torch.ones(2, 4, 3)).shape == (2, 4, 3)
    event = q.to_event(1)
    assert (event.batch_shape, event.event_shape) == ((4,), (3,))
    assert event.log_prob(event.rsample()).shape == (4,)
    wide = event.expand([6, 4])
    assert wide.rsample((2,)).shape == (2, 6, 4, 3)
    assert MeanWeibull(0.5, 1.0).rsample().shape == ()
    with pytest.raises(RuntimeError):
        MeanWeibull(torch.ones(4), torch.ones(3))


def test_draws_within_a_batch_are_independent():
    draws = MeanWeibull(1.0, 1.0).expand([1000]).rsample()
    assert len(draws.unique()) == 1000


def test_expand_keeps_gradients_and_shares_the_normaliser():
    mean, kappa = torch.rand(3, 1).requires_grad_(), torch.rand(3, 1).requires_grad_()
    q = MeanWeibull(mean, kappa)
    wide = q.expand([5, 3, 2])
    assert type(wide) is MeanWeibull
    assert wide.log_norm.data_ptr() == q.log_norm.data_ptr()
    value = torch.rand(5, 3, 2) + 0.1
    torch.testing.assert_close(wide.log_prob(value), q.log_prob(value))
    gradients = torch.autograd.grad(wide.log_prob(value).sum() + wide.rsample().sum(), (mean, kappa))
    assert all((gradient != 0).all() for gradient in gradients)


def test_normaliser_is_computed_once(monkeypatch):
    calls, lgamma = [], torch.lgamma
    monkeypatch.setattr(torch, "lgamma", lambda x: calls.append(1) or lgamma(x))
    q = MeanWeibull(torch.rand(3), torch.rand(3), validate_args=False)
    assert not calls
    q.log_prob(q.rsample())
    q.entropy()
    q.expand([2, 3]).rsample()
    assert len(calls) == 1


@pytest.mark.parametrize(("mean", "kappa"), [(-1.0, 1.0), (1.0, 0.0), (math.nan, 1.0)])
def test_validation(mean, kappa):
    with pytest.raises(ValueError, match=r"mean|kappa"):
        MeanWeibull(mean, kappa, validate_args=True)
    MeanWeibull(mean, kappa, validate_args=False)


def test_validates_values():
    q = MeanWeibull(1.0, 1.0, validate_args=True)
    for density in (q.log_prob, q.cdf, q.expand([2]).log_prob):
        density(torch.tensor(1.0))
        with pytest.raises(ValueError, match="support"):
            density(torch.tensor(-1.0))


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

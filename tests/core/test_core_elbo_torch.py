"""With B other than 0: the same objective in plain torch, draw for draw, and by brute force."""

import statistics

import pyro
import pytest
import torch
from core_cases import PlainBaRA, backbone, bara_pair, gamma_priors, make_batch
from pyro.infer import TraceMeanField_ELBO
from torch.testing import assert_close

from bara_pyro.core.distributions import KAPPA_MAX
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.guides.fvae import FVAEGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA
from bara_pyro.models.fvae import FVAE

N, R = 12, 3
PHI, THETA = (0.7, 1.3), (2.0, 0.5)
CASES = [("qwen2", "additive"), ("qwen2", "gate"), ("gpt2", "additive"), ("gpt_neox", "gate")]


def toy(arch: str = "qwen2", form: str = "gate", scale: float = 0.3) -> tuple[BaRA, WeibullGuide]:
    fit = {"random_kappa": True, "max_kappa": KAPPA_MAX}
    options = {"form": form, "beta_theta": 1.0, **gamma_priors(phi=PHI, theta=THETA)}
    return bara_pair(arch, num_data=N, r=R, scale=scale, fit=fit, **options)


def gradients(model: BaRA, guide: WeibullGuide) -> dict[str, torch.Tensor]:
    grads = {}
    for part, module in (("model", model), ("guide", guide)):
        for name, value in module.named_parameters():
            grads[f"{part}.{name}"], value.grad = value.grad, None
    return grads


@pytest.mark.parametrize(("arch", "form"), CASES)
def test_value_and_gradients_equal_those_of_plain_torch(arch: str, form: str) -> None:
    model, guide = toy(arch, form)
    plain = PlainBaRA(model, guide)
    batch = make_batch(pad=1)
    for seed in range(3):
        pyro.set_rng_seed(seed)
        loss = MeanFieldELBO().terms(model, guide, batch).loss
        loss.backward()
        ours = gradients(model, guide)
        pyro.set_rng_seed(seed)
        truth = plain.loss(batch, PHI, THETA)
        truth.backward()
        assert_close(loss, truth, rtol=1e-5, atol=0)
        for name, grad in gradients(model, guide).items():
            assert grad.abs().max() > 0
            # Relative to the largest entry: small ones are differences of large ones.
            assert_close(ours[name], grad, rtol=0, atol=1e-4 * float(grad.abs().max()), msg=name)


@pytest.mark.parametrize(("arch", "form"), CASES)
def test_stock_elbo_gives_the_same_value_and_gradients(arch: str, form: str) -> None:
    model, guide = toy(arch, form)
    batch = make_batch()
    results = []
    for elbo in (MeanFieldELBO(), TraceMeanField_ELBO()):
        pyro.set_rng_seed(3)
        loss = elbo.differentiable_loss(model, guide, batch)
        loss.backward()
        results.append((loss.detach(), gradients(model, guide)))
    pyro.set_rng_seed(3)
    terms = MeanFieldELBO().terms(model, guide, batch).loss
    assert_close(results[0][0], terms.detach(), rtol=1e-6, atol=0)
    assert_close(results[0][0], results[1][0], rtol=1e-5, atol=0)
    for name, grad in results[1][1].items():
        assert_close(results[0][1][name], grad, rtol=0, atol=1e-4 * float(grad.abs().max()), msg=name)


def mean_and_error(values: list[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5


def agree(first: list[float], second: list[float]) -> None:
    (a, ea), (b, eb) = mean_and_error(first), mean_and_error(second)
    assert abs(a - b) < 4 * (ea**2 + eb**2) ** 0.5, (a, ea, b, eb)


@pytest.mark.slow
@torch.no_grad()
def test_the_expectation_is_that_of_brute_force() -> None:
    model, guide = toy(scale=0.1)
    plain = PlainBaRA(model, guide)
    batch = make_batch()
    pyro.set_rng_seed(11)
    terms = [MeanFieldELBO().terms(model, guide, batch) for _ in range(300)]
    brute = [plain.objective(batch, PHI, THETA) for _ in range(300)]
    # Per part: of ours, and of brute force.
    parts = (
        (lambda t: t.nll / 3, lambda b: b["nll"]),
        (lambda t: sum(v for k, v in t.kl.items() if k != "phi"), lambda b: b["kl_theta"]),
        (lambda t: t.loss, lambda b: N / 4 * (b["nll"] + b["kl_theta"]) + b["kl_phi"]),
    )
    for of_terms, of_brute in parts:
        ours, truth = [float(of_terms(t)) for t in terms], [float(of_brute(b)) for b in brute]
        agree(ours, truth)
        mean, error = mean_and_error(truth)
        assert 0 < error < 0.02 * mean  # tight enough to notice a wrong part


@torch.no_grad()
def test_the_one_draw_estimate_has_the_same_expectation() -> None:
    # B = 0: the only noise is that of the sampled divergence.
    model, guide = toy(scale=0.0)
    batch = make_batch()
    exact = MeanFieldELBO().terms(model, guide, batch).loss.item()
    pyro.set_rng_seed(13)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bara_pyro.core.elbo.has_analytic_kl", lambda q, p: False)
        sampled = [MeanFieldELBO(sampled_kl=True).terms(model, guide, batch).loss.item() for _ in range(250)]
    mean, error = mean_and_error(sampled)
    assert abs(mean - exact) < 4 * error
    assert error < 0.05 * exact


@pytest.mark.slow
@pytest.mark.parametrize("vectorize", [False, True])
@torch.no_grad()
def test_particles_average(vectorize: bool) -> None:
    model, guide = toy(scale=0.1)
    batch = make_batch()
    pyro.set_rng_seed(14)
    one = [MeanFieldELBO().loss(model, guide, batch) for _ in range(100)]
    elbo = MeanFieldELBO(num_particles=4, vectorize_particles=vectorize, max_plate_nesting=2)
    many = [elbo.loss(model, guide, batch) for _ in range(50)]
    agree(one, many)
    assert statistics.variance(many) < 0.5 * statistics.variance(one)


@torch.no_grad()
def test_terms_average_particles_too() -> None:
    model, guide = toy(scale=0.1)
    batch = make_batch()
    pyro.set_rng_seed(15)
    singles = [MeanFieldELBO().terms(model, guide, batch) for _ in range(3)]
    pyro.set_rng_seed(15)
    three = MeanFieldELBO(num_particles=3).terms(model, guide, batch)
    assert_close(three.loss, torch.stack([t.loss for t in singles]).mean())
    assert_close(three.nll, torch.stack([t.nll for t in singles]).mean())
    for site, kl in three.kl.items():
        assert_close(kl, torch.stack([t.kl[site] for t in singles]).mean())
    two = MeanFieldELBO(num_particles=2)
    pyro.set_rng_seed(15)
    assert_close(two.terms(model, guide, batch).loss, torch.stack([t.loss for t in singles[:2]]).mean())


@torch.no_grad()
def test_terms_average_what_else_is_observed() -> None:
    """The reconstructions of FVAE, observed beside the answers."""
    model = FVAE(backbone(), 4, r=2)
    guide, batch = FVAEGuide(model), make_batch()
    pyro.set_rng_seed(16)
    singles = [MeanFieldELBO().terms(model, guide, batch) for _ in range(2)]
    pyro.set_rng_seed(16)
    both = MeanFieldELBO(num_particles=2).terms(model, guide, batch)
    assert both.extra
    for site, value in both.extra.items():
        assert_close(value, torch.stack([t.extra[site] for t in singles]).mean())

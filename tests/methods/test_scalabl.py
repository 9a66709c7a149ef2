"""ScalaBL: its divergence in both orders, its bound, its two recipes, its predictions."""

import math

import pytest
import torch
from core_cases import backbone, make_batch, randomise
from method_cases import (
    ALPHA,
    N,
    R,
    assert_same_gradients,
    assert_stock_draws_agree,
    cross_entropy,
    factor_of,
    losses_of_both,
    made,
    plain_log_probs,
    svi_of,
    twin_of,
)
from pyro.distributions import Normal
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import kl_divergence
from torch.testing import assert_close

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.optimizers import parameters
from bara_pyro.core.prediction import predict
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.guides.scalabl import ScalaBLGuide
from bara_pyro.methods.recipes import kl_cycle
from bara_pyro.models.lora import LoRA
from bara_pyro.models.scalabl import ScalaBL

ORDERS = ["q||p", "p||q"]


def toy(scale: float = 0.5, kl: str = "q||p", **options: object) -> tuple[ScalaBL, ScalaBLGuide]:
    model = randomise(ScalaBL(backbone(), N, r=R, lora_alpha=ALPHA, **options))
    return model, ScalaBLGuide(model, init_scale=scale, kl=kl)


def entries(log_s: Tensor, log_sigma: Tensor, kl: str, shift: Tensor | float = 0.0) -> Tensor:
    """The divergence entry by entry, from Normal(mean, sigma^2) to the prior Normal(u, (1 + u)^2)."""
    mean, sigma = log_s.exp(), log_sigma.exp()
    gap, width = mean - shift, 1 + torch.as_tensor(shift)
    if kl == "q||p":
        return width.log() - log_sigma + (sigma**2 + gap**2) / (2 * width**2) - 0.5
    return log_sigma - width.log() + (width**2 + gap**2) / (2 * sigma**2) - 0.5


def registered(log_s: Tensor, log_sigma: Tensor, kl: str, prior: type = Normal) -> Tensor:
    """The divergence that the guide's posterior gives, entry by entry."""
    _, guide = toy(kl=kl)
    del guide.log_s, guide.log_sigma  # parameters, whose gradient would end there
    guide.log_s, guide.log_sigma = log_s, log_sigma
    zero = torch.zeros((), dtype=log_s.dtype)
    fn = prior(zero, zero + 1).expand(log_s.shape)
    return kl_divergence(guide.get_posterior("s", fn).base_dist, fn)


def log_probs_at(model: ScalaBL, batch: Batch, s: Tensor) -> Tensor:
    """The answers' log-probabilities at given singular values, `modules x r`."""
    return plain_log_probs(
        model, batch, lambda a, x: ALPHA / R * x @ (a.lora_B @ s[a.target.index].diag() @ a.lora_A).T
    )


def drawn(guide: ScalaBLGuide, seed: int) -> Tensor:
    """The singular values that the guide draws first from a seed."""
    torch.manual_seed(seed)
    noise = torch.normal(torch.zeros_like(guide.log_s), torch.ones_like(guide.log_s))
    return guide.log_s.exp() + guide.log_sigma.exp() * noise


def nll_at(model: ScalaBL, batch: Batch, s: Tensor) -> Tensor:
    return cross_entropy(log_probs_at(model, batch, s), batch)


@pytest.mark.parametrize("kl", ORDERS)
@pytest.mark.parametrize(("mean", "sigma"), [(0.577, 0.043), (2.0, 0.3)])
def test_the_divergence_by_quadrature(kl: str, mean: float, sigma: float) -> None:
    q, p = stats.norm(mean, sigma), stats.norm(0, 1)
    first, second = (q, p) if kl == "q||p" else (p, q)
    low, high = first.mean() - 12 * first.std(), first.mean() + 12 * first.std()
    truth, _ = integrate.quad(
        lambda x: first.pdf(x) * (first.logpdf(x) - second.logpdf(x)), low, high, limit=200
    )
    value = registered(torch.tensor([math.log(mean)]), torch.tensor([math.log(sigma)]), kl)
    assert value.item() == pytest.approx(truth, rel=1e-5, abs=1e-6)


def test_the_order_does_not_depend_on_whose_normal_the_prior_is() -> None:
    values = [
        registered(torch.zeros(1), torch.zeros(1) - 1, "p||q", prior)
        for prior in (Normal, torch.distributions.Normal)
    ]
    assert values[0] == values[1]


@pytest.mark.parametrize(("kl", "beta"), [("q||p", 0.3), ("p||q", 1.0)])
def test_the_objective_is_the_one_written_by_hand(kl: str, beta: float) -> None:
    model, guide = toy(kl=kl, beta=beta)
    batch = make_batch(pad=2)
    truth = N * nll_at(model, batch, drawn(guide, 5)) + beta * entries(guide.log_s, guide.log_sigma, kl).sum()
    torch.manual_seed(5)
    terms = MeanFieldELBO().terms(model, guide, batch)
    assert terms.loss.item() == pytest.approx(truth.item(), rel=1e-5)
    assert_same_gradients((model, guide), terms.loss, truth, rtol=1e-4, atol=1e-4)


def test_it_starts_at_the_singular_value_decomposition_of_loras_a() -> None:
    torch.manual_seed(1)
    lora = LoRA(backbone(), N, r=R)
    torch.manual_seed(1)
    model = ScalaBL(backbone(), N, r=R)
    guide = ScalaBLGuide(model)
    for row, (ours, theirs) in enumerate(zip(model.adapters.values(), lora.adapters.values(), strict=True)):
        right, s = ours.lora_A.detach(), guide.log_s[row].detach().exp()
        assert_close(right @ right.T, torch.eye(R), rtol=0, atol=1e-6)
        gram = theirs.lora_A.detach().T @ theirs.lora_A.detach()
        assert_close(right.T @ (s**2).diag() @ right, gram, rtol=0, atol=1e-6)
        assert not ours.lora_B.any()
    sigma = guide.log_sigma.exp()
    assert sigma.min() >= 0.05 / 2**0.5 * 0.9999
    assert sigma.max() <= 0.05 * 1.0001
    assert sigma.std() > 0.002


@pytest.mark.parametrize("kl", ORDERS)
def test_the_published_scheme_step_by_step(kl: str) -> None:
    """Three steps beside torch's AdamW on the cross-entropy and torch's SGD on pi_i KL, from one point."""
    settings = {"recipe": "reproduction", "kl": kl}
    model, guide = made("scalabl", **settings)
    with torch.no_grad():
        guide.log_sigma.add_(math.log(10))
    randomise(model)
    twin, double = twin_of((model, guide))
    # A large batch on paper makes the cycle short, so that the KL of the first steps has weight.
    svi = svi_of("scalabl", (model, guide), settings, steps=5, lr=1e-3, batch_size=64)
    batch, cycle, start = make_batch(), kl_cycle(N, 64), guide.log_sigma.detach().clone()
    assert cycle == 4
    adam = torch.optim.AdamW(parameters(twin, double), lr=1e-3, weight_decay=0.0, eps=1e-6)
    sgd = torch.optim.SGD(double.parameters(), lr=0.2)
    for step in range(3):
        torch.manual_seed(step)
        svi.step(batch)
        adam.param_groups[0]["lr"], sgd.param_groups[0]["lr"] = 1e-3 * factor_of(step), 0.2 * factor_of(step)
        adam.zero_grad()
        sgd.zero_grad()
        nll = nll_at(twin, batch, drawn(double, step))
        pi = 2.0 ** (step + 1) / (2.0 ** (cycle + 1) - 1)
        kl_grads = torch.autograd.grad(
            pi * entries(double.log_s, double.log_sigma, kl, model.shift).sum(), list(double.parameters())
        )
        nll.backward()
        adam.step()
        for p, grad in zip(double.parameters(), kl_grads, strict=True):
            p.grad = grad
        sgd.step()
    assert ((guide.log_sigma - start).abs() > 0.05).all()  # far beyond AdamW's 3e-3: the KL moved it
    for ours, theirs in zip(parameters(model, guide), parameters(twin, double), strict=True):
        assert_close(ours, theirs, rtol=1e-4, atol=2e-6)


def test_one_vector_a_draw_is_shared_by_all_rows() -> None:
    p = predict(*toy(), make_batch(((5, 7, 9),) * 4), samples=20).exp()
    assert (p - p[:, :1]).abs().max() < 1e-6
    assert p.std(0).min() > 1e-3


def test_no_draws_means_the_mean_of_s() -> None:
    model, guide = toy()
    own = predict(model, guide, make_batch(), samples=0)[0]
    with torch.no_grad():
        truth = log_probs_at(model, make_batch(), guide.log_s.exp())
    assert_close(own.float(), truth, rtol=0, atol=1e-5)


def test_stock_predictive_draws_the_same_distribution() -> None:
    assert_stock_draws_agree(toy(kl="p||q"), parallel=True)


def test_stock_svi_takes_the_same_path() -> None:
    ours, stock = losses_of_both(lambda: toy(kl="p||q"))
    assert ours == pytest.approx(stock, rel=2e-3)


def test_bad_settings_are_refused() -> None:
    model = ScalaBL(backbone(), N, r=R)
    for options in ({"kl": "p"}, {"init_scale": 0.0}):
        with pytest.raises(ConfigError, match=str(next(iter(options.values())))):
            ScalaBLGuide(model, **options)
    with pytest.raises(ConfigError, match="beta=-1"):
        ScalaBL(backbone(), N, beta=-1.0)
    with pytest.raises(ConfigError, match="r=17 must not exceed the width 16"):
        ScalaBL(backbone(), N, r=17)


@pytest.mark.parametrize("kl", ["q||p", "p||q"])
def test_the_accidental_prior_of_the_public_code(kl: str) -> None:
    torch.manual_seed(3)
    model, guide = made("scalabl", recipe="reproduction", kl=kl)
    u = model.shift.double()
    assert u.shape == (len(model.targets), R)
    assert 0.05 / 2**0.5 <= u.min() < u.max() <= 0.05
    mean, sigma = guide.log_s.detach().double().exp(), guide.log_sigma.detach().double().exp()
    (m1, s1), (m2, s2) = [((mean, sigma), (u, 1 + u)), ((u, 1 + u), (mean, sigma))][kl == "p||q"]
    truth = ((s2 / s1).log() + (s1**2 + (m1 - m2) ** 2) / (2 * s2**2) - 0.5).sum()
    found = MeanFieldELBO().terms(model, guide, make_batch()).kl["s"]
    assert found.item() == pytest.approx(truth.item(), rel=1e-5)
    # The bound's own arm keeps the prior of the paper, and draws nothing for it.
    plain, _ = made("scalabl")
    assert plain.shift.item() == 0.0
    assert "shift" not in {**dict(model.named_parameters()), **model.state_dict()}

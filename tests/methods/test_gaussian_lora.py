"""LoRA with Gaussian weights: the distribution of its changes, its bound, MAP, and BLoB's two recipes."""

import math

import pytest
import torch
from core_cases import backbone, make_batch, randomise
from method_cases import (
    ALPHA,
    N,
    R,
    assert_same_gradients,
    cross_entropy,
    factor_of,
    made,
    plain_log_probs,
    svi_of,
    twin_of,
    unflip,
)
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.optimizers import parameters
from bara_pyro.core.prediction import predict
from bara_pyro.core.svi import SVI
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.guides.normal import NormalGuide
from bara_pyro.guides.point import PointGuide
from bara_pyro.methods.recipes import kl_cycle
from bara_pyro.models.gaussian_lora import Deviations, GaussianLoRA
from bara_pyro.runs.config import load_config

SCALE = 0.2


def toy(**options: object) -> tuple[GaussianLoRA, NormalGuide]:
    model = randomise(GaussianLoRA(backbone(), N, r=R, **{"random": "A", "prior_scale": SCALE, **options}))
    return model, NormalGuide(model, init_scale=0.5)


def sigma_of(guide: NormalGuide, path: str, weight: str = "lora_A") -> Tensor:
    return guide.sites[f"{weight}/{path}".replace(".", "/")].scale.square()


def normal_kl(mean: Tensor, sigma: Tensor, scale: float = SCALE) -> Tensor:
    """KL(Normal(mean, sigma) || Normal(0, scale)), summed: the formula of BLoB's paper."""
    entries = (scale / sigma).log() + (sigma**2 + mean**2) / (2 * scale**2) - 0.5
    return entries.double().sum()


def total_kl(model: GaussianLoRA, guide: NormalGuide) -> Tensor:
    """Of all modules, A at its mean."""
    return torch.stack(
        [normal_kl(a.lora_A, sigma_of(guide, a.target.path)) for a in model.adapters.values()]
    ).sum()


def log_probs_at(model: GaussianLoRA, batch: Batch, deviation: dict[str, Tensor]) -> Tensor:
    """The answers' log-probabilities with A + deviation in every layer, one draw for all tokens."""
    return plain_log_probs(
        model,
        batch,
        lambda a, x: ALPHA / R * (x @ (a.lora_A + deviation[a.target.path]).T) @ a.lora_B.T,
    )


def draw_deviations(model: GaussianLoRA, guide: NormalGuide, seed: int) -> dict[str, Tensor]:
    """What the guide draws first from a seed: one Gaussian matrix a module, in the order of the modules."""
    torch.manual_seed(seed)
    sigmas = {t.path: sigma_of(guide, t.path) for t in model.targets}
    return {path: torch.normal(torch.zeros_like(s), torch.ones_like(s)) * s for path, s in sigmas.items()}


@pytest.mark.parametrize("beta", [0.3, 0.0])
def test_the_bound_is_the_one_written_by_hand(beta: float) -> None:
    model, guide = toy(beta=beta)
    batch = make_batch()
    deviation = draw_deviations(model, guide, 5)
    nll = N * cross_entropy(log_probs_at(model, batch, deviation), batch)
    truth = nll + beta * total_kl(model, guide)
    torch.manual_seed(5)
    terms = MeanFieldELBO().terms(model, guide, batch)
    assert terms.loss.item() == pytest.approx(truth.item(), rel=1e-5)
    assert terms.nll.item() == pytest.approx(nll.item(), rel=1e-5)
    assert_same_gradients((model, guide), terms.loss, truth, rtol=1e-3, atol=1e-4)


def test_map_adds_the_log_prior_of_both_factors() -> None:
    model = randomise(GaussianLoRA(backbone(), N, r=R, random="AB", prior_scale=0.4))
    guide = PointGuide(model)
    batch = make_batch()
    zero = {t.path: torch.zeros(()) for t in model.targets}
    nll = N * cross_entropy(log_probs_at(model, batch, zero), batch)
    weights = [p.double() for p in model.parameters()]
    log_prior = sum(
        -(w**2).sum() / (2 * 0.4**2) - w.numel() * math.log(0.4 * math.sqrt(2 * math.pi)) for w in weights
    )
    terms = MeanFieldELBO().terms(model, guide, batch)
    assert terms.loss.item() == pytest.approx((nll - log_prior).item(), rel=1e-5)
    own, all_one = predict(model, guide, batch, samples=0), predict(model, guide, batch, samples=5)
    assert_close(all_one, own.expand(5, -1, -1), rtol=0, atol=0)


def token_output(model: GaussianLoRA, guide: NormalGuide, x: Tensor, draws: int) -> Tensor:
    """Draws of the change of one layer at one token, `draws x out`."""
    adapter = next(iter(model.adapters.values()))
    sigma = sigma_of(guide, adapter.target.path).detach()
    with torch.no_grad():
        out = []
        for _ in range(draws):
            deviation = torch.randn_like(sigma) * sigma
            own = Deviations(deviation, None)
            out.append(adapter.change(x.expand(1, 1, -1), own).flatten())
    return torch.stack(out)


@pytest.mark.parametrize("flipout", [False, True])
def test_a_token_sees_the_gaussian_distribution_of_a(flipout: bool) -> None:
    """s B A x has covariance s^2 B diag(sigma^2 x^2) B^T, with and without random signs."""
    model, guide = toy(flipout=flipout, target_modules=["q_proj"])
    adapter, x, draws = next(iter(model.adapters.values())), torch.linspace(-1, 2, 16), 4000
    seen = token_output(model, guide, x, draws)
    up = adapter.lora_B.detach() * adapter.scaling
    variance = (sigma_of(guide, adapter.target.path).detach() ** 2) @ x**2
    mean, covariance = up @ adapter.lora_A.detach() @ x, up @ variance.diag() @ up.T
    spread = covariance.diag().sqrt()
    assert ((seen.mean(0) - mean) / spread).abs().max() < 4.5 / draws**0.5
    error = (seen.T.cov() - covariance) / (spread * spread[:, None])
    assert error.abs().max() < 5 * (2 / draws) ** 0.5


def test_signs_part_the_tokens() -> None:
    """Without signs equal tokens get equal noise; with them their noise is uncorrelated."""
    for flipout in (False, True):
        model, guide = toy(flipout=flipout, target_modules=["q_proj"])
        adapter = next(iter(model.adapters.values()))
        sigma = sigma_of(guide, adapter.target.path).detach()
        x = torch.ones(1, 2, 16)
        centre = adapter.scaling * adapter.lora_B.detach() @ adapter.lora_A.detach() @ x[0, 0]
        pairs = []
        for _ in range(2000):
            own = Deviations(torch.randn_like(sigma) * sigma, None)
            pairs.append((adapter.change(x, own)[0] - centre).detach()[:, 0])
        correlation = torch.stack(pairs).T.corrcoef()[0, 1].item()
        assert correlation == pytest.approx(0.0 if flipout else 1.0, abs=0.1 if flipout else 1e-4)


def test_the_published_scheme_step_by_step() -> None:
    """Three steps beside torch's AdamW on the cross-entropy and torch's SGD on pi_i KL."""
    settings = {"recipe": "reproduction"}
    model, guide = made("blob", **settings)
    unflip(model)
    randomise(model, 0.1)
    twin, double = twin_of((model, guide))
    # A large batch on paper makes the cycle short, so that the KL of the first steps has weight.
    svi = svi_of("blob", (model, guide), settings, steps=5, lr=0.01, batch_size=64)
    batch, cycle = make_batch(), kl_cycle(N, 64)
    assert cycle == 4
    adam = torch.optim.AdamW(twin.parameters(), lr=0.01, weight_decay=0.0, eps=1e-6)
    sgd = torch.optim.SGD(parameters(twin, double), lr=0.01)
    for step in range(3):
        torch.manual_seed(step)
        svi.step(batch)
        for group in (*adam.param_groups, *sgd.param_groups):
            group["lr"] = 0.01 * factor_of(step)
        nll = cross_entropy(log_probs_at(twin, batch, draw_deviations(twin, double, step)), batch)
        weight = 2.0 ** (step + 1) / (2.0 ** (cycle + 1) - 1)
        kl = total_kl(twin, double)
        own = parameters(twin, double)
        g_nll = torch.autograd.grad(nll, own, allow_unused=True)
        g_kl = torch.autograd.grad(weight * kl, own, allow_unused=True)
        alone = {id(p) for p in double.parameters()}
        for p, g in zip(own, g_nll, strict=True):
            p.grad = g
        adam.step()
        for p, g, k in zip(own, g_nll, g_kl, strict=True):
            first = g if id(p) in alone else None
            parts = [part for part in (first, k) if part is not None]
            p.grad = torch.stack(parts).sum(0) if parts else None
        sgd.step()
    for ours, theirs in zip(parameters(model, guide), parameters(twin, double), strict=True):
        assert_close(ours, theirs, rtol=1e-3, atol=3e-5)


@pytest.mark.parametrize(("rows", "cycle"), [(640, 316), (2251, 518), (9427, 909)])
def test_the_published_cycles(rows: int, cycle: int) -> None:
    assert kl_cycle(rows, 4) == cycle


def test_scales_start_where_they_should() -> None:
    model = GaussianLoRA(backbone(), N, r=R, random="A", prior_scale=SCALE)
    for transform in ("square", "softplus"):
        guide = NormalGuide(model, transform=transform)  # by default from 0.05
        for name in model.latents.global_sites:
            sigma = guide.distribution(name).base_dist.scale
            assert sigma.min() >= 0.05**2 / 2 * 0.999
            assert sigma.max() <= 0.05**2 * 1.001
    wide = NormalGuide(model, init_scale=10.0, transform="softplus")  # whose exponential is no float32
    scales = torch.cat(
        [wide.distribution(name).base_dist.scale.flatten() for name in model.latents.global_sites]
    )
    assert 50 * 0.999 <= scales.min() < scales.max() <= 100 * 1.001


def test_a_scale_that_crosses_zero_stays_finite() -> None:
    model, guide = toy()
    with torch.no_grad():
        for p in guide.parameters():
            p.zero_()
    svi = SVI(model, guide, torch.optim.AdamW(parameters(model, guide), lr=1e-3))
    assert math.isfinite(svi.evaluate_loss(make_batch()))


def test_bad_numbers_are_refused() -> None:
    for options in ({"random": "C"}, {"prior_scale": 0.0}, {"beta": -1.0}):
        with pytest.raises(ConfigError, match=str(next(iter(options.values())))):
            GaussianLoRA(backbone(), N, **{"random": "A", "prior_scale": SCALE, **options})
    model = GaussianLoRA(backbone(), N, random="A", prior_scale=SCALE)
    for options, said in (
        ({"transform": "cube"}, "transform='cube'"),
        ({"init_scale": 0.0}, r"init_scale=0.0 must be positive\.$"),
    ):
        with pytest.raises(ConfigError, match=said):
            NormalGuide(model, **options)


def test_presets_of_the_section_train() -> None:
    assert load_config(overrides={"method": "lora"}).train.weight_decay == 0.0
    assert load_config(overrides={"method": "map_decoupled"}).train.weight_decay == 0.01
    for given in (0.0, 0.5):
        config = load_config(overrides={"method": "map_decoupled", "train.weight_decay": given})
        assert config.train.weight_decay == given

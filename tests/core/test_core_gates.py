"""How sparse the gates are: at the start, the Weibull law's own answer."""

import math

import pytest
import torch
from core_cases import backbone, make_batch
from scipy import integrate, special, stats
from torch import nn

from bara_pyro.distributions import KAPPA_MAX
from bara_pyro.gates import gate_sparsity
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA
from bara_pyro.models.lora import LoRA

LN2 = math.log(2)
TAU = 0.1
R, BATCHES = 64, 30


def weibull(kappa: float, mean: float = LN2) -> stats.rv_continuous:
    return stats.weibull_min(1 / kappa, scale=mean / special.gamma(1 + kappa))


def within(percent: float, probability: float, count: int) -> None:
    error = 100 * math.sqrt(probability * (1 - probability) / count)
    assert abs(percent - 100 * probability) < 4 * error
    assert error < 0.5


@pytest.mark.parametrize(("shape", "kappa", "printed"), [("kappa", LN2, 5.18), ("k", 1 / LN2, 26.6)])
def test_phi_at_the_start(shape: str, kappa: float, printed: float) -> None:
    probability = weibull(kappa).cdf(TAU)
    assert 100 * probability == pytest.approx(printed, abs=0.05)
    model = BaRA(backbone(), 4, r=R, latent="phi", target_modules="all-linear")
    # init_kappa is given as kappa in both: k = softplus(raw) starts at ln 2 where kappa does at 1 / ln 2.
    guide = WeibullGuide(model, shape=shape, init_kappa=kappa, max_kappa=KAPPA_MAX)
    batches = [make_batch(((5,),))] * BATCHES
    out = gate_sparsity(model, guide, batches, tau=TAU)
    assert set(out) == {"phi", "psi"}
    assert out["psi"] == out["phi"]
    within(out["phi"], probability, BATCHES * 14 * R)


def test_theta_and_the_product() -> None:
    # theta's raw weights at 0: both gates have the law of phi's start; the product by quadrature.
    model = BaRA(backbone(), 4, r=16, target_modules=["lm_head", "q_proj"])
    guide = WeibullGuide(model, init_kappa=LN2)
    for site in guide.sites.values():
        nn.init.zeros_(site.weight)
    out = gate_sparsity(model, guide, [make_batch()] * 150, tau=TAU)
    law = weibull(LN2)
    product = integrate.quad(lambda u: law.cdf(TAU / law.ppf(u)), 0, 1)[0]
    assert set(out) == {"phi", "theta", "psi"}
    within(out["theta"], law.cdf(TAU), 150 * 4 * 3 * 16)
    # Rows share phi: as if a quarter as many draws, which is safe.
    within(out["psi"], product, 150 * 3 * 16)


def test_it_is_the_last_token_that_counts() -> None:
    # theta follows the last token alone: its mean is made tiny for one word and large for the others.
    model = BaRA(backbone(), 4, r=2, latent="theta", target_modules=["model.layers.0.self_attn.q_proj"])
    guide = WeibullGuide(model, init_kappa=0.01)
    lm = backbone().lm
    with torch.no_grad():
        x = lm.model.layers[0].input_layernorm(lm.model.embed_tokens.weight)[[5, 9]]
        solve = torch.linalg.lstsq(x, torch.tensor([[-20.0], [5.0]])).solution.T
        for site in guide.sites.values():
            site.weight.zero_()
            site.weight[:2] = solve
    ends = {word: gate_sparsity(model, guide, [make_batch(((5, 9, word),))])["theta"] for word in (5, 9)}
    assert ends == {5: 100.0, 9: 0.0}


def test_reproducible_and_without_a_trace() -> None:
    model = BaRA(backbone(), 4, r=8)
    guide = WeibullGuide(model)
    before = torch.get_rng_state()
    first = gate_sparsity(model, guide, [make_batch()], seed=1)
    assert torch.equal(before, torch.get_rng_state())
    assert first == gate_sparsity(model, guide, iter([make_batch()]), seed=1)
    assert first != gate_sparsity(model, guide, [make_batch()], seed=2)


def test_lora_has_no_gates() -> None:
    from bara_pyro.guides.delta import DeltaGuide

    model = LoRA(backbone(), 4, r=3)
    assert gate_sparsity(model, DeltaGuide(model), [make_batch()]) == {}

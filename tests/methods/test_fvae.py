"""FVAE-LoRA: both objectives against plain torch, the parts by hand, prediction without the decoder, runs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyro
import pytest
import torch
from core_cases import backbone, make_batch, plain_forward
from method_cases import (
    ALPHA,
    UNLABELLED,
    N,
    R,
    assert_same_gradients,
    assert_same_mean,
    made,
    plain_log_probs,
    svi_of,
)
from pyro.infer import Predictive, TraceMeanField_ELBO
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from bara_pyro.core.adapter import Adapter
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.likelihood import CompletionLikelihood
from bara_pyro.core.optimizers import parameters
from bara_pyro.core.prediction import predict
from bara_pyro.data.replies import EncodedReply, reply_batch
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.guides.fvae import FVAEGuide
from bara_pyro.methods.base import build, method_config
from bara_pyro.models.fvae import FVAE, MLP, Weights

SCALING = ALPHA / (R + 1e-5)
SMALL = 1e-3  # the weight of what is not the cross-entropy, as published
UNEVEN = {"rec": 0.7, "z2": 2.0, "z1": 0.3, "kl": 1.9, "ce": 50.0}
PUBLISHED = {"rec": 1.0, "z2": 1.0, "z1": 1.0, "kl": 1.0, "ce": 1000.0}

Weigh = Callable[..., None]


def toy(
    shake: float = 0.3, decoder: dict[str, Any] | None = None, **settings: object
) -> tuple[FVAE, FVAEGuide]:
    """Away from the start, so that every parameter matters; with another decoder than the method's."""
    torch.manual_seed(1)
    model, guide = made("fvae", **settings)
    if decoder:
        model = FVAE(backbone(), N, r=R, lora_alpha=ALPHA, weights=model.weights, **decoder)
        guide = FVAEGuide(model)
    with torch.no_grad():
        for p in parameters(model, guide):
            p.add_(shake * torch.randn_like(p) / p.shape[-1] ** 0.5)
    return model, guide


class Plain(NamedTuple):
    """One pass in plain torch; lists by module: entries `B x T` (`B x 1` in the head) or `B x T x r`."""

    log_probs: Tensor
    rec: list[Tensor]
    kl1: list[Tensor]
    kl2: list[Tensor]
    z1: list[Tensor]
    z2: list[Tensor]


def encode(guide: FVAEGuide, site: str, x: Tensor) -> tuple[Tensor, Tensor]:
    inner, heads = guide.sites[site.replace(".", "/")].layers
    hidden = (x @ inner.weight.T + inner.bias).clamp_min(0)
    out = hidden @ heads.weight.T + heads.bias
    return out[..., :R], out[..., R:].clamp(-20, 20)


def gaussian(mean: Tensor, logvar: Tensor) -> Tensor:
    return mean + logvar.exp().sqrt() * torch.normal(torch.zeros_like(mean), torch.ones_like(mean))


def decode(adapter: torch.nn.Module, z: Tensor) -> Tensor:
    *inner, last = adapter.decoder.layers
    for layer in inner:
        z = (z @ layer.weight.T + layer.bias).clamp_min(0)
    return z @ last.weight.T + last.bias


def normal_kl(mean: Tensor, logvar: Tensor, m: float) -> Tensor:
    return 0.5 * (logvar.exp() + (mean - m) ** 2 - 1 - logvar).sum(-1)


def plain_pass(model: FVAE, guide: FVAEGuide, batch: Batch, *, detach: bool, mean: bool = False) -> Plain:
    """The forward of the official code; draws in the order in which the layers run."""
    out = Plain(torch.empty(0), [], [], [], [], [])

    def change(adapter: Adapter, x: Tensor) -> Tensor:
        mean1, logvar1 = encode(guide, adapter.target.site("z1"), x)
        if mean:
            return SCALING * mean1 @ adapter.lora_B.T
        z1 = gaussian(mean1, logvar1)
        mean2, logvar2 = encode(guide, adapter.target.site("z2"), x)
        z2 = gaussian(mean2, logvar2)
        scale = torch.ones(x.shape[-1])
        if adapter.decoder_scale is not None:
            scale = adapter.decoder_scale + 1e-5
        distribution = torch.distributions.MultivariateNormal(
            x.detach() if detach else x, scale_tril=scale.diag()
        )
        out.rec.append(-distribution.log_prob(decode(adapter, torch.cat([z1, z2], -1))))
        out.kl1.append(normal_kl(mean1, logvar1, 0.0))
        out.kl2.append(normal_kl(mean2, logvar2, 1.5))
        out.z1.append(z1)
        out.z2.append(z2)
        return SCALING * z1 @ adapter.lora_B.T

    return out._replace(log_probs=plain_log_probs(model, batch, change))


def masks(out: Plain, batch: Batch, padding: bool) -> list[Tensor]:
    """Which tokens count, by module; the head's one always does."""
    kept = torch.ones_like(batch.attention_mask) if padding else batch.attention_mask
    return [kept if rec.shape == kept.shape else kept[:, -1:] for rec in out.rec]


@pytest.fixture
def weigh(monkeypatch: pytest.MonkeyPatch) -> Weigh:
    """Give the parts of the reproduced loss other weights than the published ones."""

    def with_weights(w: dict[str, float], **flags: bool) -> None:
        part = {
            "kl_z1": w["kl"],
            "kl_z2": 0.0,
            "reconstruction": w["rec"],
            "spread": w["z1"],
            "pull": w["z2"],
        }
        shares = {name: weight / w["ce"] for name, weight in part.items()}
        weights = Weights(**shares, averaged=True, **flags)  # type: ignore[arg-type]
        monkeypatch.setattr("bara_pyro.methods.fvae._weights", lambda config: weights)

    return with_weights


def published_loss(out: Plain, batch: Batch, padding: bool, w: dict[str, float]) -> Tensor:
    """As `FVAEPEFTLoraModel.forward` adds it up: w CE + the mean over modules of their parts."""
    total = torch.zeros(())
    for i, kept in enumerate(masks(out, batch, padding)):
        total = total + w["rec"] * out.rec[i][kept].mean()
        total = total + w["z2"] * ((out.z2[i] - 1.5) ** 2)[kept].mean()
        total = total - w["z1"] * (out.z1[i] ** 2)[kept].mean()
        total = total + w["kl"] * out.kl1[i][kept].mean()
    return w["ce"] * F.nll_loss(out.log_probs, batch.labels) + total / len(out.rec)


def elbo_loss(out: Plain, batch: Batch, beta: float) -> Tensor:
    """Of the whole data set: N / B times the sums over rows and real tokens."""
    parts = [
        (rec + kl1 + kl2)[kept].sum()
        for rec, kl1, kl2, kept in zip(out.rec, out.kl1, out.kl2, masks(out, batch, False), strict=True)
    ]
    nll = F.nll_loss(out.log_probs, batch.labels, reduction="sum")
    return N / len(batch) * (nll + beta * torch.stack(parts).sum())


@pytest.mark.parametrize(
    ("beta", "decoder"), [(0.01, {}), (1.0, {"decoder_layers": 1, "learn_scale": False})]
)
def test_the_bound_is_that_of_plain_torch(beta: float, decoder: dict) -> None:
    model, guide = toy(beta=beta, decoder=decoder)
    batch = make_batch(pad=1)
    torch.manual_seed(5)
    terms = MeanFieldELBO().terms(model, guide, batch)
    torch.manual_seed(5)
    out = plain_pass(model, guide, batch, detach=True)
    truth = elbo_loss(out, batch, beta)
    assert_close(terms.loss, truth, rtol=1e-5, atol=0)
    assert terms.nll.item() == pytest.approx(N * F.nll_loss(out.log_probs, batch.labels).item(), rel=1e-5)
    for i, target in enumerate(model.targets):
        kept = masks(out, batch, False)[i]
        for values, parts, site in (
            (out.kl1, terms.kl, "z1"),
            (out.kl2, terms.kl, "z2"),
            (out.rec, terms.extra, "reconstruction"),
        ):
            assert_close(parts[f"{site}/{target.path}"], values[i][kept].sum(), rtol=1e-4, atol=0)
    assert_same_gradients((model, guide), terms.loss, truth, atol=1e-7, share=2e-4)


@pytest.mark.parametrize(
    ("weights", "padding", "detach"),
    [(PUBLISHED, True, False), (PUBLISHED, False, True), (UNEVEN, True, True), (UNEVEN, False, False)],
)
def test_the_published_loss_is_that_of_plain_torch(
    weights: dict, padding: bool, detach: bool, weigh: Weigh
) -> None:
    if weights is not PUBLISHED or not padding or detach:
        weigh(weights, padding=padding, detach=detach)
    model, guide = toy(recipe="reproduction")
    batch = make_batch(pad=2)
    torch.manual_seed(5)
    terms = MeanFieldELBO().terms(model, guide, batch)
    torch.manual_seed(5)
    truth = published_loss(plain_pass(model, guide, batch, detach=detach), batch, padding, weights)
    ours = terms.loss / N * weights["ce"]
    assert_close(ours, truth, rtol=1e-5, atol=0)
    assert_same_gradients((model, guide), ours, truth, atol=1e-7, share=2e-4)


def test_stock_pyro_gives_the_same_loss_and_gradients() -> None:
    for settings in ({"beta": 0.1}, {"recipe": "reproduction"}):
        model, guide = toy(**settings)
        losses = []
        for elbo in (MeanFieldELBO(), TraceMeanField_ELBO()):
            pyro.set_rng_seed(3)
            losses.append(elbo.differentiable_loss(model, guide, make_batch()))
        assert_close(losses[0], losses[1], rtol=1e-5, atol=0)
        assert_same_gradients((model, guide), *losses, atol=1e-7, share=2e-4)


def test_the_step_is_that_of_the_published_loss() -> None:
    """Loss and epsilon are divided by one number: AdamW moves as on the loss of the official code."""
    model, guide = made("fvae", recipe="reproduction")
    start = [p.detach().clone().requires_grad_() for p in parameters(model, guide)]
    svi = svi_of("fvae", (model, guide), {"recipe": "reproduction"}, steps=3000)
    svi.step(make_batch())
    twin = torch.optim.AdamW(start, lr=svi.scheduler.base_lrs[0] / 180, eps=1e-8, weight_decay=0.0)  # warm-up
    for p, q in zip(start, parameters(model, guide), strict=True):
        p.grad = None if q.grad is None else 1000.0 * q.grad
    twin.step()
    for p, q in zip(start, parameters(model, guide), strict=True):
        assert_close(p, q, rtol=1e-5, atol=1e-8)


def test_where_training_starts() -> None:
    """S = 0 is the backbone; a draw is not, since B is not 0; q(z1) is its prior, q(z2) 1.5 away from it."""
    torch.manual_seed(0)
    model, guide = made("fvae", r=64, beta=1.0)
    batch = make_batch()
    truth = plain_forward(batch, backbone().lm).detach().double()
    assert_close(predict(model, guide, batch, samples=0)[0], truth, rtol=0, atol=1e-6)
    assert (predict(model, guide, batch, samples=3) - truth).abs().min() > 1e-6
    terms = MeanFieldELBO().terms(model, guide, batch)
    for target in model.targets:
        tokens = 4 if target.is_head else int(batch.attention_mask.sum())
        assert terms.kl[f"z1/{target.path}"] == 0
        assert terms.kl[f"z2/{target.path}"].item() == pytest.approx(0.5 * 1.5**2 * 64 * tokens)
    up = model.adapters["lm_head"].lora_B
    assert up.std().item() == pytest.approx(0.02, rel=4 / (2 * up.numel()) ** 0.5)


def test_no_draws_is_the_published_predictive() -> None:
    model, guide = toy()
    with torch.no_grad():
        truth = plain_pass(model, guide, make_batch(), detach=True, mean=True).log_probs
    ours = predict(model, guide, make_batch(), samples=0)[0]
    assert_close(ours, truth.double(), rtol=0, atol=1e-5)


def test_the_draws_are_those_of_plain_torch() -> None:
    model, guide = toy()
    draws = 600
    ours = predict(model, guide, make_batch(), samples=draws)
    many = make_batch(choose=[0, 1, 2, 3] * draws)
    with torch.no_grad():
        log_probs = plain_pass(model, guide, many, detach=True).log_probs
    theirs = log_probs.double().unflatten(0, (draws, 4))
    assert_same_mean(ours, theirs, least=0.01)
    assert ((ours.exp().var(0) / theirs.exp().var(0)).log().abs() < 0.35).all()


def test_prediction_runs_no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    model, guide = toy()
    decoders = {id(adapter.decoder) for adapter in model.adapters.values()}
    z2 = {id(encoder) for site, encoder in guide.sites.items() if site.startswith("z2")}
    calls = {"decoder": 0, "z2": 0}
    plain = MLP.forward

    def counted(self: MLP, x: Tensor) -> Tensor:
        calls["decoder"] += id(self) in decoders
        calls["z2"] += id(self) in z2
        return plain(self, x)

    monkeypatch.setattr(MLP, "forward", counted)
    for samples in (0, 3):
        predict(model, guide, make_batch(), samples=samples)
    draws = Predictive(model, guide=guide, num_samples=3)(UNLABELLED)
    assert calls == {"decoder": 0, "z2": 0}
    assert {site.split("/")[0] for site in draws} == {"z1", "y"}
    MeanFieldELBO().terms(model, guide, make_batch())
    assert calls == {"decoder": len(decoders), "z2": len(z2)} != {"decoder": 0, "z2": 0}


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="decoder_width=0"):
        FVAE(backbone(), N, decoder_width=0)
    with pytest.raises(ConfigError, match="pull=-1"):
        FVAE(backbone(), N, weights=Weights(pull=-1.0))
    with pytest.raises(ConfigError, match="hidden=0"):
        FVAEGuide(FVAE(backbone(), N), hidden=0)
    FVAEGuide(FVAE(backbone(), N), hidden=1)


def test_scales_lie_between_two_ends() -> None:
    model, guide = toy()
    site = next(iter(model.latents.local_sites))
    with torch.no_grad():
        guide.sites[site.replace(".", "/")].heads.bias[R:] = torch.tensor([-500.0, 0.0, 500.0])
    guide._inputs.append((torch.zeros(1, 16), None))
    scale = guide.get_posterior(site, None).base_dist.scale[0]
    assert scale[0].item() == pytest.approx(np.exp(-10), rel=1e-5)
    assert scale[2].item() == pytest.approx(np.exp(10), rel=1e-5)


@pytest.mark.parametrize(("modules", "length"), [(["lm_head"], 9), (["lm_head", "0.self_attn.q_proj"], 4)])
def test_the_reproduction_averages_over_tokens_of_replies(
    modules: list[str], length: int, weigh: Weigh
) -> None:
    """The output embedding sees those that are scored alone: its part does not grow with a reply."""
    batch = reply_batch([[EncodedReply((1, 2), tuple(range(3, 3 + length)), str(row))] for row in range(3)])
    weigh(PUBLISHED | {"z1": 0.0, "z2": 0.0, "kl": 0.0})
    config = method_config({"name": "fvae", "recipe": "reproduction"})
    adapter = {"r": R, "likelihood": CompletionLikelihood(), "target_modules": modules}
    terms = MeanFieldELBO().terms(*build(config, backbone(), N, adapter), batch)
    found = {name: value.item() for name, value in terms.extra.items() if name.startswith("reconstruction")}
    tokens = {"lm_head": 3 * length, "q_proj": 3 * (1 + length)}
    averages = [value / tokens[name.split(".")[-1].split("/")[-1]] for name, value in found.items()]
    assert len(averages) == len(modules)
    assert (terms.loss - terms.nll).item() == pytest.approx(N * SMALL * np.mean(averages), rel=5e-3)

"""C-LoRA: E token by token, its bound, its two recipes, its predictions."""

from collections.abc import Callable

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
    made,
    plain_log_probs,
    svi_of,
    twin_of,
)
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.adapter import Adapter
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.optimizers import parameters
from bara_pyro.core.prediction import predict
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.guides.contextual import ContextNetwork, ContextualGuide
from bara_pyro.methods.clora import KL_WEIGHT
from bara_pyro.methods.recipes import kl_cycle
from bara_pyro.models.clora import CLoRA

SCALE = 0.2


def enliven(model: CLoRA, guide: ContextualGuide) -> tuple[CLoRA, ContextualGuide]:
    """B that is not 0, and networks whose outputs depend on the token."""
    randomise(model)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in guide.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return model, guide


def toy(**options: object) -> tuple[CLoRA, ContextualGuide]:
    model = CLoRA(backbone(), N, r=R, lora_alpha=ALPHA, **{"beta": 1.0, **options})
    return enliven(model, ContextualGuide(model, hidden=8))


class PlainCLoRA:
    """C-LoRA written out: shares the parameters of model and guide, nothing of their code.

    Args:
        model, guide: whose parameters to use.
        noise: `size -> Gaussian noise` of one layer, called as the layers run; zeros for the mean.
    """

    def __init__(self, model: CLoRA, guide: ContextualGuide, noise: Callable[[torch.Size], Tensor]) -> None:
        self.model, self.guide, self.noise = model, guide, noise
        self.kl: list[Tensor] = []

    def moments(self, path: str, h: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and scale of E, `... x r x r`."""
        network = self.guide.sites[f"E/{path}".replace(".", "/")]
        hidden = torch.clamp(h @ network.weight_in.T + network.bias_in, min=0)
        out = hidden @ network.weight_out.T + network.bias_out
        mean, raw = out[..., : R * R], out[..., R * R :]
        sigma = (1 / (1 + torch.exp(-raw))) ** 2 + 1e-6
        return mean.unflatten(-1, (R, R)), sigma.unflatten(-1, (R, R))

    def log_probs(self, batch: Batch) -> Tensor:
        """The answers' log-probabilities, `B x C`; the divergences of real tokens are kept in `kl`."""
        self.kl = []

        def change(own: Adapter, x: Tensor) -> Tensor:
            h = x @ own.lora_A.T
            mean, sigma = self.moments(own.target.path, h)
            e = mean + sigma * self.noise(sigma.flatten(-2).shape).view_as(sigma)
            kl = (SCALE / sigma).log() + (sigma**2 + mean**2) / (2 * SCALE**2) - 0.5
            real = batch.attention_mask[:, -x.shape[1] :]
            self.kl.append((kl.sum((-1, -2)) * real).sum())
            return ALPHA / R * torch.einsum("oi,btij,btj->bto", own.lora_B, e, h)

        return plain_log_probs(self.model, batch, change)

    def nll(self, batch: Batch) -> Tensor:
        """Mean cross-entropy."""
        return cross_entropy(self.log_probs(batch), batch)


def gaussian(size: torch.Size) -> Tensor:
    return torch.normal(torch.zeros(size), torch.ones(size))


@pytest.mark.parametrize("beta", [1.0, 0.0])
def test_the_objective_is_the_one_written_by_hand(beta: float) -> None:
    model, guide = toy(beta=beta)
    batch = make_batch(pad=2)
    plain = PlainCLoRA(model, guide, gaussian)
    torch.manual_seed(5)
    nll = plain.nll(batch)
    kl = torch.stack(plain.kl).sum()
    truth = N * nll + beta * N / 4 * kl
    torch.manual_seed(5)
    terms = MeanFieldELBO().terms(model, guide, batch)
    assert terms.loss.item() == pytest.approx(truth.item(), rel=1e-5)
    if beta:
        assert sum(v.item() for v in terms.kl.values()) == pytest.approx(kl.item(), rel=1e-5)
        assert kl > 100 * nll
    assert_same_gradients((model, guide), terms.loss, truth, rtol=1e-3, atol=1e-6, share=1e-4)


def test_the_posterior_starts_at_the_published_noise() -> None:
    for scale in (0.25, 0.05):
        model = CLoRA(backbone(), N, r=8)
        guide = ContextualGuide(model, init_scale=scale)
        guide._inputs.append(torch.randn(500, 8))
        for name in model.latents.local_sites:
            q = guide.get_posterior(name, None).base_dist
            assert q.scale.median().item() == pytest.approx(scale, rel=0.1)
            assert q.mean.abs().mean() < 0.3


def test_networks_start_as_torchs_layers_do_but_for_the_noise() -> None:
    torch.manual_seed(3)
    ours = ContextNetwork(5, 1, 6, offset=0.7)
    torch.manual_seed(3)
    first, last = torch.nn.Linear(5, 1), torch.nn.Linear(1, 6)
    pairs = [(ours.weight_in, first.weight), (ours.bias_in, first.bias), (ours.weight_out, last.weight)]
    assert all(torch.equal(own, theirs) for own, theirs in pairs)
    assert_close(ours.bias_out - last.bias, torch.tensor([0.0, 0.0, 0.0, 0.7, 0.7, 0.7]))


def test_the_published_weight_of_the_kl() -> None:
    assert pytest.approx(1.5384615e-8) == KL_WEIGHT


def test_the_published_scheme_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps beside torch's AdamW over A and B and torch's SGD over the networks, one backward pass."""
    # Weights at which the KL shows; a large batch on paper makes the cycle short.
    monkeypatch.setattr("bara_pyro.methods.clora.NLL_WEIGHT", 2.0)
    monkeypatch.setattr("bara_pyro.methods.clora.KL_WEIGHT", 0.02)
    settings = {"recipe": "reproduction"}
    model, guide = enliven(*made("clora", **settings))
    twin, double = twin_of((model, guide))
    svi = svi_of("clora", (model, guide), settings, steps=5, lr=1e-3, batch_size=64)
    cycle, start = kl_cycle(N, 64), [p.detach().clone() for p in parameters(model, guide)]
    pieces = [make_batch(choose=[0]), make_batch(choose=[1, 2, 3])]
    adam = torch.optim.AdamW(twin.parameters(), lr=1e-3, weight_decay=0.0, eps=1e-6)
    sgd = torch.optim.SGD(double.parameters(), lr=0.01)
    plain = PlainCLoRA(twin, double, gaussian)
    for step in range(3):
        torch.manual_seed(step)
        svi.step(*pieces)
        adam.param_groups[0]["lr"], sgd.param_groups[0]["lr"] = 1e-3 * factor_of(step), 0.01 * factor_of(step)
        adam.zero_grad()
        sgd.zero_grad()
        torch.manual_seed(step)
        pi = 2.0 ** (step + 1) / (2.0 ** (cycle + 1) - 1)
        for piece in pieces:
            nll = plain.nll(piece)
            (2.0 * nll * len(piece) / 4).backward(retain_graph=True)
            (0.02 * pi * torch.stack(plain.kl).sum()).backward()
        adam.step()
        sgd.step()
    for ours, theirs, old in zip(parameters(model, guide), parameters(twin, double), start, strict=True):
        assert (ours - old).abs().max() > 1e-4
        assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


def test_no_draws_means_the_mean_of_e() -> None:
    model, guide = toy()
    own = predict(model, guide, make_batch(), samples=0)[0]
    with torch.no_grad():
        truth = PlainCLoRA(model, guide, torch.zeros).log_probs(make_batch())
    assert_close(own.float(), truth, rtol=0, atol=1e-5)


def test_stock_predictive_draws_the_same_distribution() -> None:
    assert_stock_draws_agree(toy(), parallel=True)


def test_a_posterior_without_noise_stays_finite() -> None:
    model, guide = toy()
    with torch.no_grad():
        for network in guide.sites.values():
            network.bias_out[R * R :] = -200.0  # whose sigmoid squares to 0 in float32
    guide._inputs.append((torch.randn(3, R), None))
    scale = guide.get_posterior(next(iter(model.latents.local_sites)), None).base_dist.scale
    assert_close(scale, torch.full_like(scale, 1e-6), rtol=1e-3, atol=0)
    guide._inputs.pop()
    terms = MeanFieldELBO().terms(model, guide, make_batch())
    assert terms.loss.isfinite()
    grads = torch.autograd.grad(terms.loss, parameters(model, guide))
    assert all(grad.isfinite().all() for grad in grads)


def test_bad_settings_are_refused() -> None:
    model = CLoRA(backbone(), N, r=R)
    ContextualGuide(model, hidden=1)
    for options in ({"hidden": 0}, {"init_scale": 1.0}, {"init_scale": 0.0}):
        with pytest.raises(ConfigError, match=str(next(iter(options.values())))):
            ContextualGuide(model, **options)
    for options in ({"prior_scale": 0.0}, {"beta": -1.0}):
        with pytest.raises(ConfigError, match=str(next(iter(options.values())))):
            CLoRA(backbone(), N, **options)


class Half:
    """One of two processes, whose averages the test takes itself."""

    size, first = 2, True

    def average(self, tensors: list[Tensor], numbers: dict[str, float]) -> dict[str, float]:
        return numbers


def test_two_processes_have_the_kl_of_one_with_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published recipe, whose local KL is a sum over rows: the mean of two halves is half of it."""

    monkeypatch.setattr("bara_pyro.methods.clora.NLL_WEIGHT", 1e-12)

    def gradient(*batches: Batch, ranks: object = None) -> Tensor:
        torch.manual_seed(0)
        svi = svi_of("clora", toy(), {"recipe": "reproduction"})
        monkeypatch.setattr(svi, "_weight", lambda: 1.0)
        real = svi.elbo.terms

        def terms(model: CLoRA, guide: ContextualGuide, batch: Batch) -> object:
            torch.manual_seed(int(batch.input_ids.sum()))  # of its rows, wherever they are
            return real(model, guide, batch)

        monkeypatch.setattr(svi.elbo, "terms", terms)
        svi.ranks = ranks
        svi.gradients(*batches)
        return torch.cat([p.grad.flatten() for p in svi.parameters if p.grad is not None])

    halves = make_batch(choose=[0, 1]), make_batch(choose=[2, 3])
    whole = gradient(*halves)
    assert whole.norm() > 0
    parts = [gradient(half, ranks=Half()) for half in halves]
    assert_close(torch.stack(parts).mean(0), whole, rtol=1e-4, atol=1e-6)

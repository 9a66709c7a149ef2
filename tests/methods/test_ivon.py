"""IVON-LoRA: its update by hand, its posterior, its runs, and what happens without its package."""

import json
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from core_cases import make_batch, randomise
from fit_cases import assert_runs_come_back, tiny_run
from method_cases import (
    ALPHA,
    Pair,
    R,
    assert_same_mean,
    assert_stock_draws_agree,
    cross_entropy,
    factor_of,
    made,
    plain_log_probs,
)
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.adapter import Adapter
from bara_pyro.core.prediction import predict
from bara_pyro.core.svi import SVI
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, TrainingError
from bara_pyro.methods import METHODS
from bara_pyro.models.posthoc import PosthocLoRA
from bara_pyro.runs.config import load_config
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train

PLACE = "bara_pyro.methods.ivon"


@pytest.fixture
def ivon() -> ModuleType:
    return pytest.importorskip("ivon", reason="ivon-opt is optional: it is under the GPL")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running means that a few steps change."""
    monkeypatch.setattr(f"{PLACE}.BETA1", 0.7)
    monkeypatch.setattr(f"{PLACE}.BETA2", 0.9)


def toy() -> Pair:
    torch.manual_seed(3)
    model, guide = made("ivon")
    return randomise(model, 0.1), guide


def ivon_svi(pair: Pair, **settings: object) -> SVI:
    config = load_config(overrides={"method": "ivon", "train.steps": 10, **settings})
    return METHODS["ivon"].svi(*pair, config.train, config.method)


def log_probs_at(model: PosthocLoRA, batch: Batch, weights: list[Tensor]) -> Tensor:
    """The answers' log-probabilities at weights A, B, A, B, .. of the modules in order."""

    def change(adapter: Adapter, x: Tensor) -> Tensor:
        down, up = weights[2 * adapter.target.index :][:2]
        return ALPHA / R * x @ (up @ down).T

    return plain_log_probs(model, batch, change)


class Plain:
    """IVON written out: section 12 of the notes on methods, on one flat vector in float64.

    The draw is the one that the optimiser makes from the same seed.
    """

    def __init__(self, model: PosthocLoRA, ess: float, h: float, delta: float) -> None:
        self.model = model
        self.shapes = [w.shape for w in (p for a in model.adapters.values() for p in (a.lora_A, a.lora_B))]
        flat = [p.detach().flatten() for a in model.adapters.values() for p in (a.lora_A, a.lora_B)]
        self.m = torch.cat(flat).double()
        self.h = torch.full_like(self.m, h)
        self.gbar = torch.zeros_like(self.m)
        self.ess, self.delta, self.t = ess, delta, 0

    def weights(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([shape.numel() for shape in self.shapes])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def step(self, batch: Batch, seed: int, lr: float, b1: float, b2: float, clip: float) -> None:
        torch.manual_seed(seed)
        sigma = (self.ess * (self.h + self.delta)) ** -0.5
        theta = self.m + torch.randn(len(self.m)) * sigma
        leaf = theta.float().requires_grad_()
        cross_entropy(log_probs_at(self.model, batch, self.weights(leaf)), batch).backward()
        g = leaf.grad.double()
        hhat = g * (theta - self.m) / sigma**2
        self.gbar = b1 * self.gbar + (1 - b1) * g
        correction = 0.5 * (1 - b2) ** 2 * (self.h - hhat) ** 2 / (self.h + self.delta)
        self.h = b2 * self.h + (1 - b2) * hhat + correction
        self.t += 1
        newton = (self.gbar / (1 - b1**self.t) + self.delta * self.m) / (self.h + self.delta)
        self.m = self.m - lr * newton.clamp(-clip, clip)


@pytest.mark.parametrize(("clip", "delta"), [(None, 0.2), (0.1, 0.0)])
def test_three_steps_are_those_of_the_formula(
    ivon: ModuleType, clip: float | None, delta: float, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, batch = toy(), make_batch()
    monkeypatch.setattr(f"{PLACE}.HESS_INIT", 0.3)
    monkeypatch.setattr(f"{PLACE}.CLIP_RADIUS", 1e9 if clip is None else clip)
    svi = ivon_svi(pair, **{"method.ess": 500.0, "train.weight_decay": delta, "train.lr": 0.05})
    plain = Plain(pair[0], ess=500.0, h=0.3, delta=delta)
    start = plain.m.clone()
    for step in range(3):
        rate = 0.05 * factor_of(step, 10)
        plain.step(batch, step, rate, 0.7, 0.9, math.inf if clip is None else clip)
        torch.manual_seed(step)
        svi.step(batch)
    ours = torch.cat([p.detach().flatten() for p in svi.parameters]).double()
    assert (plain.m - start).abs().max() > 1e-3
    assert (plain.h - 0.3).abs().max() > 0.05
    assert_close(ours, plain.m, rtol=0, atol=2e-5)
    hess = svi.optim.param_groups[0]["hess"].double()
    assert_close(hess, plain.h, rtol=1e-3, atol=1e-4)
    assert_scales(pair, 1 / (500.0 * (hess + delta)).sqrt())


def test_steps_are_those_of_the_package_alone(
    ivon: ModuleType, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its optimiser on plain copies of the weights, in the loop that its page shows."""
    pair, batch = toy(), make_batch()
    config = {"ess": 500.0, "hess_init": 0.3, "clip_radius": 0.1}
    monkeypatch.setattr(f"{PLACE}.HESS_INIT", 0.3)
    monkeypatch.setattr(f"{PLACE}.CLIP_RADIUS", 0.1)
    svi = ivon_svi(pair, **{"method.ess": 500.0, "train.weight_decay": 0.2, "train.lr": 0.05})
    own = [p for a in pair[0].adapters.values() for p in (a.lora_A, a.lora_B)]
    copies = [torch.nn.Parameter(p.detach().clone()) for p in own]
    optim = ivon.IVON(copies, lr=0.05, weight_decay=0.2, rescale_lr=False, beta1=0.7, beta2=0.9, **config)
    for step in range(4):
        torch.manual_seed(step)
        with optim.sampled_params(train=True):
            optim.zero_grad()
            cross_entropy(log_probs_at(pair[0], batch, copies), batch).backward()
        optim.param_groups[0]["lr"] = 0.05 * factor_of(step, 10)
        optim.step()
        torch.manual_seed(step)
        svi.step(batch)
    for ours, theirs in zip(own, copies, strict=True):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert_close(svi.optim.param_groups[0]["hess"], optim.param_groups[0]["hess"], rtol=1e-3, atol=1e-5)


def assert_scales(pair: Pair, sigma: Tensor) -> None:
    """Of every weight, in the order of the parameters."""
    model, guide = pair
    sites = [f"lora_{letter}/{a.target.path}" for a in model.adapters.values() for letter in "AB"]
    own = torch.cat([guide.scale(site).flatten() for site in sites])
    assert_close(own.double(), sigma, rtol=1e-5, atol=0)
    for site in sites:
        assert_close(guide.distribution(site).base_dist.scale, guide.scale(site), rtol=0, atol=0)


def test_micro_batches_share_a_draw(ivon: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{PLACE}.CLIP_RADIUS", 1.0)
    ends = []
    for pieces in ([make_batch()], [make_batch(choose=[0, 1]), make_batch(choose=[2, 3])]):
        pair = toy()
        svi = ivon_svi(pair)
        for step in range(3):
            torch.manual_seed(step)
            svi.step(*pieces)
        ends.append([*svi.parameters, svi.optim.param_groups[0]["hess"]])
    for one, two in zip(*ends, strict=True):
        assert_close(one, two, rtol=1e-3, atol=1e-5)


def test_clipping_comes_before_the_curvature(ivon: ModuleType, quick: None) -> None:
    """A gradient clipped to nothing leaves mean and curvature where they are but for the decay of h."""
    pair = toy()
    before = [p.detach().clone() for p in pair[0].parameters()]
    svi = ivon_svi(pair, **{"train.clip_norm": 1e-12})
    svi.step(make_batch())
    assert_close([p.detach() for p in pair[0].parameters()], before, rtol=0, atol=1e-7)
    # h <- .9 h + .5 (.1)^2 h
    assert_close(
        svi.optim.param_groups[0]["hess"], torch.full((len(svi.optim.param_groups[0]["hess"]),), 0.905e-3)
    )


def test_an_error_leaves_the_means_where_they_were(ivon: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = toy()
    svi = ivon_svi(pair)
    svi.step(make_batch())
    before = [(p.detach().clone(), p.data_ptr()) for p in svi.parameters]
    broken = torch.tensor(math.nan)
    monkeypatch.setattr(PosthocLoRA, "logits", lambda self, *args: broken.expand(4, 1, 3))
    with pytest.raises(TrainingError, match="likelihood"):
        svi.step(make_batch())
    for p, (value, place) in zip(svi.parameters, before, strict=True):
        assert torch.equal(p, value)
        assert p.data_ptr() == place


def test_parameters_keep_their_memory(ivon: ModuleType) -> None:
    """The training loop holds views of them, to put good values back."""
    svi = ivon_svi(toy())
    views = [p.detach() for p in svi.parameters]
    for _ in range(2):
        svi.step(make_batch())
    for view, p in zip(views, svi.parameters, strict=True):
        assert torch.equal(view, p)


def test_a_run_comes_back(ivon: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{PLACE}.CLIP_RADIUS", 1.0)
    options = {"name": "ivon", "ess": 1e4}
    system = assert_runs_come_back(tiny_run(tmp_path, options), tmp_path)
    fitted = json.loads((tmp_path / "whole" / "fitted.json").read_text())
    scales = torch.cat([system.guide.scale(s).flatten() for s in system.model.latents.global_sites])
    assert fitted["mean_scale"] == pytest.approx(scales.mean().item())
    assert 0 < fitted["min_scale"] < fitted["mean_scale"] < fitted["max_scale"]
    assert system.guide.stochastic


def fitted_toy() -> Pair:
    """Weights and scales of a posterior, as after training."""
    torch.manual_seed(4)
    model, guide = toy()
    with torch.no_grad():
        for site in model.latents.global_sites:
            guide.scale(site).uniform_(0.01, 0.1)
    model.mark_fitted()
    return model, guide


def assert_same_variance(first: Tensor, second: Tensor) -> None:
    """Of the probabilities over draws, within 4.5 standard errors."""
    (a, error_a), (b, error_b) = (
        (square.mean(0), square.var(0) / len(square))
        for square in ((p - p.mean(0)).square() for p in (first.exp(), second.double().exp()))
    )
    assert ((a - b).abs() < 4.5 * (error_a + error_b).sqrt()).all()


def test_predictions_are_draws_of_all_weights() -> None:
    pair, batch = fitted_toy(), make_batch()
    model, guide = pair
    weights = [
        (getattr(a, name).detach(), guide.scale(f"{name}/{a.target.path}"))
        for a in model.adapters.values()
        for name in ("lora_A", "lora_B")
    ]
    with torch.no_grad():
        drawn = [
            log_probs_at(model, batch, [m + s * torch.randn_like(m) for m, s in weights]) for _ in range(600)
        ]
    ours, theirs = predict(*pair, batch, samples=1500), torch.stack(drawn)
    assert_same_mean(ours, theirs, least=0.01)
    assert_same_variance(ours, theirs)
    mean = log_probs_at(model, batch, [m for m, _ in weights])
    assert_close(predict(*pair, batch, samples=0)[0].float(), mean, rtol=0, atol=1e-5)


def test_stock_predictive() -> None:
    assert_stock_draws_agree(fitted_toy(), parallel=True)


def test_preset() -> None:
    assert load_config(overrides={"method": "ivon"}).train.lr == 0.03
    assert load_config(overrides={"method": "ivon", "train.lr": 0.1}).train.lr == 0.1


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ivon", None)
    config = tiny_run(tmp_path, {"name": "ivon"})
    with pytest.raises(ConfigError, match=r"pip install ivon-opt\.$"):
        train(build_system(config), tmp_path / "run")
    assert not (tmp_path / "run").exists()

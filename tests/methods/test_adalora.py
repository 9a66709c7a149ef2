"""AdaLoRA: its program and factor, its schedule and masks against numpy, its runs."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from core_cases import backbone, make_batch
from fit_cases import assert_runs_come_back, tiny_run
from method_cases import ALPHA, N, Pair, cross_entropy, plain_log_probs, svi_of
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn
from torch.testing import assert_close

from bara_pyro.core.adapter import Adapter
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.prediction import predict
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.methods.adalora import AdaLoRASVI, Budget
from bara_pyro.models.adalora import AdaLoRA
from bara_pyro.runs.config import load_config
from bara_pyro.runs.store import load_checkpoint, save_checkpoint
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train

R, START, STEPS = 2, 4, 20


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps are enough to allocate several times."""
    for name, value in (("MASK_INTERVAL", 2), ("T_INIT", 0.2), ("T_FINAL", 0.3)):
        monkeypatch.setattr(f"bara_pyro.methods.adalora.{name}", value)


def toy(arch: str = "qwen2", *, trained: bool = True, **options: object) -> tuple[AdaLoRA, DeltaGuide]:
    torch.manual_seed(3)
    model = AdaLoRA(backbone(arch), N, **{"r": R, "init_r": START, **options})
    if trained:
        with torch.no_grad():
            for a in model.adapters.values():
                for weight in a.parameters():
                    weight.copy_(0.5 * torch.randn_like(weight))
    return model, DeltaGuide(model)


def inference(pair: Pair) -> AdaLoRASVI:
    return svi_of("adalora", pair, steps=STEPS, lr=0.02)


def log_probs_of(model: AdaLoRA, batch: Batch, lm: nn.Module | None = None) -> Tensor:
    def change(a: Adapter, x: Tensor) -> Tensor:
        return x @ (a.lora_B @ a.lora_E[:, 0].diag() @ a.lora_A).to(x.dtype).T * ALPHA / START

    return plain_log_probs(model, batch, change, lm)


def distance(model: AdaLoRA) -> float:
    """R in float64: the mean over all matrices."""
    values = []
    for a in model.adapters.values():
        down, up = (w.detach().double().numpy() for w in (a.lora_A, a.lora_B))
        values += [np.linalg.norm(down @ down.T - np.eye(START)), np.linalg.norm(up.T @ up - np.eye(START))]
    return float(np.mean(values))


@pytest.mark.parametrize("arch", ["qwen2", "gpt2"])
def test_the_answers_are_those_of_the_product(arch: str) -> None:
    model, guide = toy(arch)
    with torch.no_grad():
        # In float64: rounding of both together would be all of the tolerance.
        truth = log_probs_of(model, make_batch(), copy.deepcopy(model.backbone.lm).double()).double()
    out = predict(model, guide, make_batch(), samples=0)
    assert_close(out[0], truth, rtol=0, atol=2e-5)
    assert torch.equal(predict(model, guide, make_batch(), samples=3), out.expand(3, -1, -1))


def test_training_starts_at_the_backbone() -> None:
    torch.manual_seed(0)
    model = AdaLoRA(backbone(), N, r=200)
    for a in model.adapters.values():
        assert a.r == 300  # 1.5 times
        assert not a.lora_E.any()
        for weight in (a.lora_A, a.lora_B):
            count = weight.numel()
            assert abs(weight.mean().item()) < 4 * 0.02 / count**0.5
            assert abs(weight.std().item() - 0.02) < 4 * 0.02 / (2 * count) ** 0.5


@pytest.mark.parametrize("rows", [2, 4])
def test_the_loss_an_example_is_the_published_one(rows: int) -> None:
    """Mean cross-entropy + g R, whatever the numbers of rows and examples."""
    batch = make_batch(choose=list(range(rows)))
    model, guide = toy(orth_weight=0.3)
    with torch.no_grad():
        ce = cross_entropy(log_probs_of(model, batch).double(), batch).item()
    penalty = distance(model)
    assert penalty > 1
    for terms_loss in (
        MeanFieldELBO().terms(model, guide, batch).loss.item(),
        TraceMeanField_ELBO().loss(model, guide, batch),
    ):
        assert terms_loss / N == pytest.approx(ce + 0.3 * penalty, rel=1e-5)
    terms = MeanFieldELBO().terms(model, guide, batch)
    assert terms.nll.item() / N == pytest.approx(ce, rel=1e-5)
    assert terms.extra["orthogonality"].item() == pytest.approx(penalty, rel=1e-5)


def test_micro_batches_count_the_factor_once() -> None:
    whole, pieces = (inference(toy(orth_weight=0.3)) for _ in range(2))
    first = whole.step(make_batch())
    second = pieces.step(make_batch(choose=[0]), make_batch(choose=[1, 2, 3]))
    assert second == pytest.approx(first, rel=1e-5)
    for key, value in whole.last.items():
        assert pieces.last[key] == pytest.approx(value, rel=1e-4), key
    assert whole.last["orthogonality"] == pytest.approx(distance(toy()[0]), rel=1e-5)
    for one, other in zip(whole.parameters, pieces.parameters, strict=True):
        assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5)


def test_the_factor_is_not_computed_in_half_precision() -> None:
    model, guide = toy()
    with torch.autocast("cpu", torch.bfloat16):
        terms = MeanFieldELBO().terms(model, guide, make_batch())
    assert terms.extra["orthogonality"].item() == pytest.approx(distance(model), rel=1e-5)


def test_without_weight_there_is_no_factor() -> None:
    terms = MeanFieldELBO().terms(*toy(orth_weight=0), make_batch())
    assert terms.extra == {}
    assert terms.loss.item() == terms.nll.item()


def test_the_budget_by_hand() -> None:
    budget = Budget(first=40, last=20, start=4, end=14, interval=3)
    # 20 + 20 (1 - (t - 4) / 10)^3, rounded down
    expected = {1: 40, 4: 40, 5: 34, 6: 30, 9: 22, 12: 20, 13: 20, 14: 20, 30: 20}
    assert {step: budget.after(step) for step in expected} == expected
    assert [step for step in range(1, 18) if budget.due(step)] == [6, 9, 12, 14, 15, 16, 17]


@pytest.mark.parametrize("stop", [8, 14])
def test_a_checkpoint_holds_the_allocators_state(stop: int, tmp_path: Path) -> None:
    whole = inference(toy())
    for step in range(STEPS):
        if step == stop:
            save_checkpoint(tmp_path, whole, stop, {"run": "a"})
        whole.step(make_batch())
    resumed = inference(toy(trained=False))
    assert load_checkpoint(tmp_path, resumed, {"run": "a"}) == stop
    for _ in range(stop, STEPS):
        resumed.step(make_batch())
    for one, other in zip(whole.parameters, resumed.parameters, strict=True):
        assert torch.equal(one, other)


def test_running_means_do_not_outlive_allocation() -> None:
    svi = inference(toy())
    kinds = []
    for _ in range(STEPS):
        svi.step(make_batch())
        kinds.append({key for state in svi.optim.state.values() for key in state})
    assert "sensitivity" in kinds[12]
    assert "kept" not in kinds[12]
    assert kinds[13] == kinds[-1] == {"step", "exp_avg", "exp_avg_sq", "kept"}


def test_a_run_comes_back_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bara_pyro.methods.adalora.MASK_INTERVAL", 1)
    system = assert_runs_come_back(tiny_run(tmp_path, {"name": "adalora"}), tmp_path)
    assert sum(system.model.ranks().values()) == 8 * len(system.model.targets)
    fitted = json.loads((tmp_path / "whole" / "fitted.json").read_text())
    assert fitted["rank_mean"] == 8
    assert fitted["rank/lm_head"] == system.model.ranks()["lm_head"]
    log = [json.loads(line) for line in (tmp_path / "whole" / "train_log.jsonl").read_text().splitlines()]
    for record in log:
        assert record["loss"] == pytest.approx(record["nll"] + 0.1 * record["orthogonality"], rel=1e-5)


def test_the_shortest_run_ends_with_the_target_rank(tmp_path: Path) -> None:
    config = load_config(base=tiny_run(tmp_path, {"name": "adalora"}), overrides={"train.steps": 1})
    system = build_system(config)
    train(system, tmp_path / "run")
    assert sum(system.model.ranks().values()) == 8 * len(system.model.targets)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="init_r=3 must be at least r=4"):
        toy(r=4, init_r=3)
    with pytest.raises(ConfigError, match="orth_weight=-1"):
        toy(orth_weight=-1)

"""The deep ensemble: every member is a LoRA of its own, and predictions are a mixture of all of them."""

import copy
from pathlib import Path

import pytest
import torch
from core_cases import backbone, make_batch
from fit_cases import tiny_run
from method_cases import ALPHA, UNLABELLED, N, Pair, R, plain_log_probs, svi_of
from pyro.infer import Predictive, TraceMeanField_ELBO
from safetensors import safe_open
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.prediction import _bytes_per_row, predict
from bara_pyro.core.svi import SVI
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.ensemble import EnsembleGuide
from bara_pyro.metrics import posterior_predictive
from bara_pyro.models.ensemble import Ensemble
from bara_pyro.models.lora import LoRA
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train

M = 3
PARTS = [[0, 1], [2, 3]]


def toy(average: str = "probabilities") -> tuple[Ensemble, EnsembleGuide]:
    """B is not 0, as after training."""
    torch.manual_seed(3)
    model = Ensemble(backbone(), N, r=R, members=M)
    with torch.no_grad():
        for a in model.adapters.values():
            a.lora_B.copy_(0.3 * torch.randn_like(a.lora_B))
    return model, EnsembleGuide(model, average=average)


def member_log_probs(model: Ensemble, batch: Batch, member: int) -> Tensor:
    """One member's answers by plain LoRA, `B x C`."""
    with torch.no_grad():
        return plain_log_probs(
            model, batch, lambda a, x: ALPHA / R * (x @ a.lora_A[member].T) @ a.lora_B[member].T
        )


def all_log_probs(model: Ensemble, batch: Batch) -> Tensor:
    return torch.stack([member_log_probs(model, batch, m) for m in range(M)])


def single(model: Ensemble, member: int) -> LoRA:
    """A LoRA with the weights of one member."""
    lora = LoRA(model.backbone, N, r=R)
    with torch.no_grad():
        for own, theirs in zip(lora.parameters(), model.parameters(), strict=True):
            own.copy_(theirs[member])
    return lora


def test_one_forward_is_the_forward_of_every_member() -> None:
    model, guide = toy()
    batch, calls = make_batch(), []
    handle = model.backbone.lm.base_model.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        trace, _ = guide.run(batch)
    handle.remove()
    assert len(calls) == 1
    out = trace.nodes["y"]["fn"].logits.squeeze(-2)
    assert out.shape == (M, 4, 3)
    assert_close(out, all_log_probs(model, batch), rtol=0, atol=2e-5)
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert (out[first] - out[second]).abs().max() > 1e-2


def test_the_bound_is_the_mean_cross_entropy_of_the_members() -> None:
    model, guide = toy()
    batch = make_batch(pad=2)
    log_probs = all_log_probs(model, make_batch()).double()
    expected = -N * log_probs[:, torch.arange(4), batch.labels].mean()
    terms = MeanFieldELBO().terms(model, guide, batch)
    assert terms.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert terms.nll.item() == terms.loss.item()
    assert TraceMeanField_ELBO().loss(model, guide, batch) == pytest.approx(expected.item(), rel=1e-5)


def test_members_start_from_their_own_values_whatever_their_number() -> None:
    def start(members: int) -> list[Tensor]:
        torch.manual_seed(5)
        return [p.detach() for p in Ensemble(backbone(), N, r=R, members=members).parameters()]

    torch.manual_seed(5)
    lora = [p.detach() for p in LoRA(backbone(), N, r=R).parameters()]
    small, large = start(2), start(4)
    for alone, two, four in zip(lora, small, large, strict=True):
        assert torch.equal(alone, two[0])
        assert torch.equal(two, four[:2])
        assert bool(two.any()) == (not torch.equal(four[2], four[3]))  # all but B, which is 0


SETTINGS = {
    "decay": {"weight_decay": 0.1},
    "pieces": {"accumulate": 2, "clip_norm": 0.05},
    # Adam's epsilon matters where it is as large as gradients are.
    "epsilon": {"eps": 0.1},
}


def inference(method: str, pair: Pair, eps: float | None = None, **settings: object) -> SVI:
    svi = svi_of(method, pair, steps=6, lr=0.03, **settings)
    for group in svi.optim.param_groups:
        group["eps"] = eps or group["eps"]
    return svi


@pytest.mark.parametrize("case", SETTINGS)
def test_a_member_is_trained_as_if_alone(case: str) -> None:
    model, guide = toy()
    settings = SETTINGS[case]
    loras = [single(model, m) for m in range(M)]
    alone = [inference("lora", (lora, DeltaGuide(lora)), **settings) for lora in loras]
    together = inference("ensemble", (model, guide), **settings)
    pieces = [make_batch(choose=part) for part in PARTS] if "accumulate" in settings else [make_batch()]
    for _ in range(6):
        loss = together.step(*pieces)
        losses = [svi.step(*pieces) for svi in alone]
        assert loss == pytest.approx(sum(losses) / M, rel=1e-5)
        norms = [svi.last["grad_norm"] for svi in alone]
        assert together.last["grad_norm"] == pytest.approx(sum(n * n for n in norms) ** 0.5, rel=1e-4)
        if "clip_norm" in settings:
            assert min(norms) > settings["clip_norm"]
    for m, lora in enumerate(loras):
        for (name, own), theirs in zip(lora.named_parameters(), model.parameters(), strict=True):
            assert_close(theirs.grad[m], own.grad, atol=2e-6, rtol=1e-3)
            # A 300th of a step: Adam divides by gradients that may be small.
            assert_close(theirs[m], own, rtol=0, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_draws_are_the_members_whatever_their_number() -> None:
    model, guide = toy()
    truth = all_log_probs(model, make_batch()).double()
    for samples in (1, 10):
        out = predict(model, guide, make_batch(), samples=samples)
        assert out.shape == (M, 4, 3)
        assert out.dtype == torch.float64
        assert_close(out, truth.log_softmax(-1), rtol=0, atol=2e-5)
    assert_close(posterior_predictive(out).exp(), truth.exp().mean(0), rtol=0, atol=2e-5)


def test_averaged_logits_are_another_predictive() -> None:
    model, guide = toy()
    batch = make_batch()
    mean = all_log_probs(model, batch).double().mean(0)
    geometric = mean.exp() / mean.exp().sum(-1, keepdim=True)
    mixture = all_log_probs(model, batch).double().exp().mean(0)
    assert (geometric - mixture).abs().max() > 1e-2
    published = EnsembleGuide(model, average="logits")
    for out in (predict(model, guide, batch, samples=0), predict(model, published, batch, samples=10)):
        assert out.shape == (1, 4, 3)
        assert_close(out[0].exp(), geometric, rtol=0, atol=2e-5)


def test_members_are_cut_by_rows_where_memory_is_short() -> None:
    model, guide = toy()
    whole = predict(model, guide, make_batch(), samples=5)
    calls: list[int] = []
    handle = backbone().lm.base_model.register_forward_hook(lambda *out: calls.append(len(out[2][0])))
    batch = make_batch()
    sequence = _bytes_per_row(model, batch, batch.input_ids.shape[1])
    largest = []
    for budget in (1, 2 * M * sequence, 10**9):
        calls.clear()
        out = predict(model, guide, make_batch(), samples=5, memory_budget=budget)
        assert_close(out, whole, rtol=0, atol=1e-5)
        assert sum(calls) == 4 * M
        largest.append(max(calls))
    handle.remove()
    assert largest == [M, 2 * M, 4 * M]  # one, two and all rows at a time, every member of them


def test_stock_predictive_answers_for_every_member() -> None:
    model, guide = toy()
    count = 400
    sampler = Predictive(model, guide=guide, num_samples=count, parallel=True, return_sites=("y",))
    with torch.no_grad():
        answers = sampler(UNLABELLED)["y"]
    assert answers.shape == (count, M, 4, 1)
    share = (answers == 0).double().mean(0).squeeze(-1)
    truth = all_log_probs(model, make_batch())[..., 0].double().exp()
    error = (truth * (1 - truth) / count).sqrt()
    assert ((share - truth).abs() < 4.5 * error + 1e-9).all()


def test_every_member_is_saved_and_loaded(tmp_path: Path) -> None:
    """Published code loaded member 0 into all but one, and left that one at the backbone."""
    system = build_system(tiny_run(tmp_path, {"name": "ensemble"}))
    fresh = copy.deepcopy(system.model.state_dict())
    train(system, tmp_path / "run")
    loaded = load_system(tmp_path / "run")
    with safe_open(tmp_path / "run" / "adapter_model.safetensors", "pt") as file:
        shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    assert all(shape[0] == M for shape in shapes.values())
    for name, value in system.model.named_parameters():
        assert torch.equal(value, loaded.model.get_parameter(name)), name
        assert len({value[m].detach().numpy().tobytes() for m in range(M)}) == M, name
    split = system.split("test")
    ours = draw(loaded, split, 1)
    assert torch.equal(ours, draw(system, split, 1))
    with torch.no_grad():  # {the backbone, member 0, member 0}
        for name, value in loaded.model.named_parameters():
            value[1:] = value[0].clone()
            value[0] = fresh[name][0]
    assert (posterior_predictive(draw(loaded, split, 1)) - posterior_predictive(ours)).abs().max() > 1e-3


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="members=0"):
        Ensemble(backbone(), N, members=0)
    with pytest.raises(ConfigError, match="'mean'"):
        toy(average="mean")

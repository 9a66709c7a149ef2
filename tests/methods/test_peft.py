"""Training and allocation agree with PEFT's own classes; PEFT reads the folders that say it can."""

import copy
import json
import re
from pathlib import Path

import pytest
import torch
from core_cases import backbone, make_batch, plain_forward, randomise
from fit_cases import tiny_run
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.svi import SVI
from bara_pyro.data.types import Batch
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.methods import METHODS, method_config
from bara_pyro.models.adalora import AdaLoRA
from bara_pyro.models.lora import LoRA
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.sections import TrainConfig
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train

peft = pytest.importorskip("peft")
# PEFT reads a name that transformers deprecates; nothing of ours.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

N, R, START, STEPS, LR = 12, 3, 5, 20, 0.01
BATCHES = [[0, 1], [2, 3], [1, 2, 3], [0, 3]]


def batch_of(step: int) -> Batch:
    return make_batch(choose=BATCHES[step % len(BATCHES)])


def adapt(model: AdaptedLM, config: object) -> tuple[nn.Module, dict[str, Tensor]]:
    """The same backbone adapted by PEFT, with our weights; its parameters by our names."""
    other = peft.get_peft_model(copy.deepcopy(model.backbone.lm), config).eval()
    theirs = {}
    for target in model.targets:
        layer = other.base_model.model.get_submodule(target.path)
        own = model.adapters[target.path.replace(".", "/")]
        for name, value in own.named_parameters():
            held = getattr(layer, name)["default"]
            held = held.weight if isinstance(held, nn.Linear) else held
            with torch.no_grad():
                held.copy_(value)
            theirs[f"adapters.{target.path.replace('.', '/')}.{name}"] = held
    assert set(theirs) == {name for name, _ in model.named_parameters()}
    assert sum(p.requires_grad for p in other.parameters()) == len(theirs)
    return other, theirs


def cross_entropy(other: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.nll_loss(plain_forward(batch, other), batch.labels)


def optimiser(weights: list[Tensor], **settings: object) -> tuple:
    """PEFT users' AdamW: torch's plain code, warm-up over 1 step of 20, then linear to 0."""
    optim = torch.optim.AdamW(weights, lr=LR, eps=1e-6, foreach=False, **{"weight_decay": 0.0, **settings})
    schedule = torch.optim.lr_scheduler.LambdaLR(optim, lambda step: 1.0 if step < 1 else (20 - step) / 19)
    return optim, schedule


def make_svi(method: str, model: AdaptedLM, train_settings: dict, **settings: object) -> SVI:
    c = TrainConfig(steps=STEPS, lr=LR, **train_settings)
    return METHODS[method].svi(model, DeltaGuide(model), c, method_config({"name": method, **settings}))


def largest_gap(model: AdaptedLM, theirs: dict[str, Tensor]) -> float:
    return max((value - theirs[name]).abs().max().item() for name, value in model.named_parameters())


# Training ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "settings"),
    [("gpt2", {}), ("qwen2", {"clip_norm": 0.1}), ("qwen2", {"weight_decay": 0.1})],
)
def test_lora_is_trained_as_by_peft_and_torch(arch: str, settings: dict) -> None:
    names = ["c_attn", "c_fc"] if arch == "gpt2" else None
    model = randomise(LoRA(backbone(arch), N, r=R, lora_alpha=6, target_modules=names), 0.1)
    start = copy.deepcopy(model.state_dict())
    other, theirs = adapt(
        model,
        peft.LoraConfig(
            r=R,
            lora_alpha=6,
            lora_dropout=0.0,
            target_modules=[t.path for t in model.targets],
            fan_in_fan_out=arch == "gpt2",
        ),
    )
    decay = {k: v for k, v in settings.items() if k == "weight_decay"}
    optim, schedule = optimiser(list(theirs.values()), **decay)
    svi = make_svi("map_decoupled" if decay else "lora", model, settings)
    for step in range(STEPS):
        ours = svi.step(batch_of(step)) / N
        optim.zero_grad()
        loss = cross_entropy(other, batch_of(step))
        loss.backward()
        if "clip_norm" in settings:
            nn.utils.clip_grad_norm_(theirs.values(), settings["clip_norm"])
        optim.step()
        schedule.step()
        assert ours == pytest.approx(loss.item(), rel=1e-5)
    moved = max((start[name] - value).abs().max().item() for name, value in model.named_parameters())
    gap = largest_gap(model, theirs)
    assert moved > 5 * LR
    assert gap < 1e-5  # a thousandth of the rate; seen: 2e-7


# AdaLoRA -------------------------------------------------------------------------------------------------


def adalora_pair(schedule: dict[str, int], *, spread: float | None = None) -> tuple:
    torch.manual_seed(4)
    model = AdaLoRA(backbone(), N, r=R, init_r=START, lora_alpha=6, orth_weight=0.3)
    if spread is not None:
        with torch.no_grad():
            for value in model.parameters():
                value.copy_(spread * torch.randn_like(value))
    config = peft.AdaLoraConfig(
        init_r=START,
        target_r=R,
        lora_alpha=6,
        lora_dropout=0.0,
        orth_reg_weight=0.3,
        target_modules=[t.path for t in model.targets],
        total_step=STEPS,
        beta1=0.85,
        beta2=0.85,
        **schedule,
    )
    return (model, *adapt(model, config))


def scheduled(monkeypatch: pytest.MonkeyPatch, tinit: int, tfinal: int, interval: int) -> None:
    """Allocate as PEFT is told to."""
    for name, value in (("T_INIT", tinit / STEPS), ("T_FINAL", tfinal / STEPS), ("MASK_INTERVAL", interval)):
        monkeypatch.setattr(f"bara_pyro.methods.adalora.{name}", value)


def peft_loss(other: nn.Module, batch: Batch) -> Tensor:
    """PEFT adds its regulariser to `outputs.loss` where labels are given: that of the answer words."""
    mask = batch.attention_mask.long()
    labels = torch.full_like(batch.input_ids, -100)
    labels[:, -1] = batch.input_ids[:, -1]
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    arguments = {"input_ids": batch.input_ids, "attention_mask": mask, "position_ids": positions}
    # Not `other(...)`: PEFT's general class calls the language model itself, past the regulariser.
    out = other.base_model(**arguments, labels=labels, use_cache=False)
    plain = other.base_model.model(**arguments, labels=labels, use_cache=False).loss
    regulariser = out.loss - plain
    own = out.logits[:, -1, batch.answer_ids].float().log_softmax(-1)
    return nn.functional.nll_loss(own, batch.labels) + regulariser


def test_adalora_gives_pefts_answers_and_regulariser() -> None:
    model, other, _ = adalora_pair({"tinit": 2, "tfinal": 4}, spread=0.4)
    batch = make_batch()
    svi = make_svi("adalora", model, {})
    terms = svi.elbo.terms(model, svi.guide, batch)
    ce = cross_entropy(other, batch).item()
    assert terms.nll.item() / N == pytest.approx(ce, rel=1e-5)
    regulariser = (terms.loss - terms.nll).item() / N
    assert regulariser == pytest.approx(peft_loss(other, batch).item() - ce, rel=1e-4)
    assert regulariser > 0.1
    assert (plain_forward(batch, other) - plain_forward(batch, model.backbone.lm)).abs().max() > 1e-2


SCHEDULES = [(2, 6, 1), (0, 10, 4), (3, 0, 2)]


@pytest.mark.parametrize(("tinit", "tfinal", "interval"), SCHEDULES)
def test_adalora_masks_as_peft_does(
    tinit: int, tfinal: int, interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PEFT's allocator is given our gradients and our weights after every step."""
    model, other, theirs = adalora_pair({"tinit": tinit, "tfinal": tfinal, "deltaT": interval}, spread=0.3)
    scheduled(monkeypatch, tinit, tfinal, interval)
    svi = make_svi("adalora", model, {})
    allocator = svi.allocator
    assert (allocator.budget.start, allocator.budget.end) == (tinit, STEPS - tfinal)
    ours, masked = allocator.step, []

    def both() -> None:
        with torch.no_grad():
            for name, value in model.named_parameters():  # after Adam, before the mask
                theirs[name].copy_(value)
                theirs[name].grad = value.grad.clone()
        ours()
        other.base_model.update_and_allocate(svi.scheduler.last_epoch + 1)

    allocator.step = both
    for step in range(STEPS):
        svi.step(batch_of(step))
        for name, value in model.named_parameters():
            assert torch.equal(value, theirs[name]), (step, name)
        masked.append(sum(int((a.lora_E == 0).sum()) for a in model.adapters.values()))
    assert masked[-1] == (START - R) * len(model.targets)
    assert len(set(masked)) >= 3  # through the whole schedule
    assert len(set(model.ranks().values())) > 1


# Folders -------------------------------------------------------------------------------------------------

PLAIN = sorted(name for name, method in METHODS.items() if method.peft)


def test_methods_that_are_a_lora_at_the_mean_say_so() -> None:
    assert {"lora", "map_decoupled", "map_prior", "blob", "mc_dropout", "temperature"} <= set(PLAIN)
    assert not {"bara", "bara-gate", "ensemble", "adalora", "scalabl", "clora"} & set(PLAIN)


@pytest.mark.parametrize("method", [name for name in PLAIN if name not in ("map_decoupled", "mc_dropout")])
def test_peft_reads_the_folder_of_a_lora(method: str, tmp_path: Path) -> None:
    if method == "ivon":
        pytest.importorskip("ivon", reason="needs the extra ivon (GPL-3, not among the development packages)")
    config = tiny_run(tmp_path, {"name": method})
    system = build_system(load_config(base=config, overrides={"task.validation_rows": 8, "train.lr": 0.05}))
    train(system, tmp_path / "run")
    system = load_system(tmp_path / "run")
    split = system.split("test")
    mean = draw(system, split, 0)[0]
    lm = AutoModelForCausalLM.from_pretrained(tmp_path / "backbone")
    plain = copy.deepcopy(lm).eval()
    theirs = peft.PeftModel.from_pretrained(lm, tmp_path / "run").eval()
    fitted = tmp_path / "run" / "fitted.json"  # PEFT has no place for a temperature
    temperature = json.loads(fitted.read_text()).get("temperature", 1.0) if fitted.exists() else 1.0
    for row in range(3):
        ids = torch.tensor([split.token_ids[row]])
        with torch.no_grad():
            logits = theirs(ids).logits[0, -1, system.answer_ids].double()
            before = plain(ids).logits[0, -1, system.answer_ids].double()
        assert_close((logits / temperature).log_softmax(-1), mean[row], rtol=0, atol=1e-5)
        assert not torch.allclose((before / temperature).log_softmax(-1), mean[row], atol=1e-4)


def test_folders_of_other_methods_are_not_read_as_a_lora(tmp_path: Path) -> None:
    for method in ("adalora", "ensemble"):
        train(build_system(tiny_run(tmp_path, {"name": method})), tmp_path / method)
        kind = json.loads((tmp_path / method / "adapter_config.json").read_text())["peft_type"]
        assert kind.startswith(f"BARA_PYRO_{method.upper()}: ")
        lm = AutoModelForCausalLM.from_pretrained(tmp_path / "backbone")
        with pytest.raises((KeyError, ValueError), match=re.escape(kind)):
            peft.PeftModel.from_pretrained(lm, tmp_path / method)

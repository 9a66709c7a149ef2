"""`BaRATrainer` against our SVI on the same batches, and what Trainer brings: logs, checkpoints, scores."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from core_cases import ANSWERS, IDS, LABELS, ROWS, make_lm
from method_cases import made, twin_of
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import EvalPrediction, TrainerCallback, TrainingArguments, get_scheduler

import bara_pyro as bp
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.optimizers import adamw, parameters
from bara_pyro.core.prediction import predict
from bara_pyro.core.svi import SVI
from bara_pyro.data import EncodedSplit
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, TrainingError
from bara_pyro.extras.hub.trainer.arguments import CHECKPOINTING
from bara_pyro.metrics import posterior_predictive

METHODS = ("lora", "bara", "bara-gate", "blob", "mc_dropout", "fvae")
TIMES = 3
SPLIT = EncodedSplit(
    token_ids=tuple(list(row) for row in ROWS) * TIMES,
    labels=LABELS * TIMES,
    ids=tuple(f"{name}{time}" for time in range(TIMES) for name in IDS),
    pad_id=0,
)
STEPS = 7


def arguments(out: Path, **settings: Any) -> TrainingArguments:
    return TrainingArguments(
        **{
            "output_dir": str(out),
            "max_steps": STEPS,
            "per_device_train_batch_size": 3,
            "learning_rate": 0.01,
            "warmup_steps": 2,
            "weight_decay": 0.1,
            "logging_steps": 1,
            "save_strategy": "no",
            "use_cpu": True,
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            **settings,
        }
    )


def trainer_of(pair: tuple, out: Path, args: dict | None = None, **options: Any) -> bp.BaRATrainer:
    return bp.BaRATrainer(
        pair, arguments(out, **(args or {})), train_dataset=SPLIT, answer_ids=ANSWERS, **options
    )


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """The batches that the loss was asked of; the noise of the n-th has the seed n."""
    batches: list[Batch] = []
    terms = MeanFieldELBO.terms

    def noted(self: MeanFieldELBO, model: Any, guide: Any, batch: Batch) -> Any:
        batches.append(batch)
        torch.manual_seed(len(batches))
        return terms(self, model, guide, batch)

    monkeypatch.setattr(MeanFieldELBO, "terms", noted)
    return batches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "pieces"), [("lora", 1), ("bara-gate", 2), ("blob", 1), ("ensemble", 2), ("adalora", 1)]
)
def test_parameters_are_those_of_our_svi(method: str, pieces: int, seen: list[Batch], tmp_path: Path) -> None:
    pair = made(method, num_data=len(SPLIT))
    twin = twin_of(pair)
    trainer = trainer_of(pair, tmp_path, {"gradient_accumulation_steps": pieces, "max_steps": 4})
    trainer.train()
    batches = [*seen]
    seen.clear()
    assert len(batches) == 4 * pieces
    optim = adamw(*twin, 0.01, weight_decay=0.1)
    svi = SVI(*twin, optim, scheduler=get_scheduler("linear", optim, 2, 4), clip_norm=1.0)
    for step, logged in enumerate(trainer.state.log_history[:4]):
        svi.step(*batches[step * pieces : (step + 1) * pieces])
        for name, value in svi.last.items():
            assert logged[name] == pytest.approx(value, rel=1e-5, abs=1e-6)
    for ours, theirs in zip(parameters(*pair), parameters(*twin), strict=True):
        assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert len(trainer.optimizer.param_groups) == len(optim.param_groups)


def test_a_run_that_is_gone_on_with_is_the_uninterrupted_one(tmp_path: Path) -> None:
    pair = made("bara-gate", num_data=len(SPLIT))
    twin, again = twin_of(pair), twin_of(pair)
    keep = {"save_strategy": "steps", "save_steps": 3}
    trainer_of(pair, tmp_path / "whole", keep).train()

    class Stop(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_training_stop = True
            return control

    trainer_of(twin, tmp_path / "half", keep, callbacks=[Stop()]).train()
    files = {path.name for path in (tmp_path / "half" / "checkpoint-3").iterdir()}
    assert files == {
        "model.safetensors",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "trainer_state.json",
    }
    trainer_of(again, tmp_path / "half", keep).train(resume_from_checkpoint=True)
    for ours, theirs in zip(parameters(*again), parameters(*pair), strict=True):
        assert torch.equal(ours, theirs)


def test_evaluation_is_that_of_the_predictive(tmp_path: Path) -> None:
    pair = made("bara", num_data=len(SPLIT))
    tables: list[np.ndarray] = []

    def accuracy(found: EvalPrediction) -> dict[str, float]:
        tables.append(found.predictions)
        return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}

    options = {"eval_dataset": SPLIT, "compute_metrics": accuracy, "eval_samples": 3}
    trainer = trainer_of(pair, tmp_path, {"per_device_eval_batch_size": 5, "seed": 11}, **options)
    scores = trainer.evaluate()
    log_probs = posterior_predictive(
        predict(*pair, SPLIT.batch(range(len(SPLIT)), ANSWERS), samples=3, seed=11)
    )
    labels = torch.tensor(SPLIT.labels)
    assert_close(torch.tensor(tables[0]), log_probs, atol=1e-6, rtol=0)
    assert scores["eval_loss"] == pytest.approx(-float(log_probs[range(len(SPLIT)), labels].mean()))
    assert scores["eval_accuracy"] == pytest.approx(float((log_probs.argmax(-1) == labels).double().mean()))
    assert trainer.predict(SPLIT).predictions.shape == (len(SPLIT), len(ANSWERS))


def test_the_best_checkpoint_is_loaded(tmp_path: Path) -> None:
    pair = made("lora", num_data=len(SPLIT))
    keep = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    more = {"load_best_model_at_end": True, "max_steps": 6, "save_only_model": True}
    trainer = trainer_of(pair, tmp_path, keep | more, eval_dataset=SPLIT)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(trainer.state.best_metric)


@pytest.mark.slow
def test_two_processes_are_one_with_all_rows(tmp_path: Path) -> None:
    driver = str(Path(__file__).parent / "trainer_driver.py")
    places = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, driver, str(tmp_path)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": places}
    )
    assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / str(count) / "found.safetensors") for count in (1, 2))
    assert len(one["nll"]) == 5
    assert_close(two, one, atol=1e-5, rtol=0)


def backbone_on_meta() -> bp.Backbone:
    return bp.Backbone(make_lm("qwen2").to("meta"))


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "optimiser": (lambda out: trainer_of(made("lora"), out, {"optim": "sgd"}), "sgd.*optimizers="),
    "guide": (lambda out: trainer_of((made("lora")[0], made("lora")[1]), out), "another model"),
    "device": (lambda out: trainer_of(made("lora", frozen=backbone_on_meta()), out), "on meta.*use_cpu"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_trained_is_refused(case: str, tmp_path: Path) -> None:
    act, said = WRONG[case]
    with pytest.raises(ConfigError, match=said):
        act(tmp_path)


CHECKPOINTING_NAME = next(name for name in CHECKPOINTING if name in TrainingArguments.__dataclass_fields__)
NOT_DONE: list[dict[str, Any]] = [
    {"label_smoothing_factor": 0.1},
    {"neftune_noise_alpha": 5.0},
    {"torch_compile": True},
    {"use_liger_kernel": True},
    {"bf16_full_eval": True},
    {"fp16_full_eval": True},
    {"optim": "adamw_torch_8bit"},
    {"optim_args": "amsgrad=True"},
    {"optim_target_modules": ["q_proj"]},
    {"label_names": ["labels"]},
    {f"{CHECKPOINTING_NAME}_kwargs": {"use_reentrant": True}},
]


@pytest.mark.parametrize("wrong", NOT_DONE, ids=lambda wrong: next(iter(wrong)))
def test_arguments_of_trainer_that_are_not_done_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        trainer_of(made("bara"), tmp_path, wrong)


@pytest.mark.parametrize("name", ["is_fsdp_enabled", "is_deepspeed_enabled"])
def test_sharded_adapters_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = bp.BaRATrainer.create_accelerator_and_postprocess

    def sharding(self: bp.BaRATrainer) -> None:
        create(self)
        setattr(self, name, True)

    monkeypatch.setattr(bp.BaRATrainer, "create_accelerator_and_postprocess", sharding)
    with pytest.raises(ConfigError, match="shard"):
        trainer_of(made("lora"), tmp_path)


@pytest.mark.parametrize("name", ["compute_loss_func", "model_init", "optimizer_cls_and_kwargs"])
def test_what_trainer_itself_would_take_and_not_use_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=name):
        trainer_of(made("bara"), tmp_path, **{name: lambda *_: None})


def test_adams_betas_and_epsilon_are_those_given(tmp_path: Path) -> None:
    args = {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-4}
    for given, betas, eps in (({}, (0.9, 0.999), 1e-6), (args, (0.8, 0.95), 1e-4)):
        groups = trainer_of(made("bara-gate"), tmp_path, given).create_optimizer().param_groups
        assert len(groups) == 2  # the amortised gates have a rate of their own
        assert {(group["betas"], group["eps"]) for group in groups} == {(betas, eps)}


@pytest.mark.parametrize("what", ["all", "non_padding"])
def test_tokens_that_were_seen_are_counted(what: str, seen: list[Batch], tmp_path: Path) -> None:
    trainer = trainer_of(made("lora"), tmp_path, {"include_num_input_tokens_seen": what})
    trainer.train()
    padded, real = (
        sum(batch.input_ids.numel() for batch in seen),
        sum(int(batch.attention_mask.sum()) for batch in seen),
    )
    assert real < padded
    assert trainer.state.num_input_tokens_seen == {"all": padded, "non_padding": real}[what]
    assert trainer.state.log_history[-2]["num_input_tokens_seen"] == trainer.state.num_input_tokens_seen


def test_checkpointing_of_trainer_is_the_backbones(seen: list[Batch], tmp_path: Path) -> None:
    """Activation checkpointing is the backbone's, with the same steps."""
    logs = []
    first = made("bara")
    for checkpointing, pair in zip((False, True), (first, twin_of(first)), strict=True):
        seen.clear()
        trainer = trainer_of(pair, tmp_path, {CHECKPOINTING_NAME: checkpointing})
        assert pair[0].backbone.checkpointing is checkpointing
        trainer.train()
        logs.append([line["loss"] for line in trainer.state.log_history if "loss" in line])
        pair[0].backbone.checkpointing = False
    assert len(logs[0]) == STEPS
    assert logs[0] == pytest.approx(logs[1], abs=1e-5)


def test_rows_may_be_grouped_by_their_length(tmp_path: Path) -> None:
    """As Trainer does it, which asks each row for its tokens."""
    trainer = trainer_of(made("bara-gate"), tmp_path, {"train_sampling_strategy": "group_by_length"})
    sampler = trainer._get_train_sampler()
    assert sampler.lengths == [len(tokens) for tokens in SPLIT.token_ids]
    assert trainer.train().global_step == STEPS


def test_inputs_for_metrics_are_the_numbers_of_the_rows(tmp_path: Path) -> None:
    seen: list[np.ndarray] = []

    def compute(found: EvalPrediction) -> dict[str, float]:
        seen.append(found.inputs)
        return {}

    args = {"include_for_metrics": ["inputs"], "per_device_eval_batch_size": 5}
    trainer_of(made("lora"), tmp_path, args, compute_metrics=compute, eval_dataset=SPLIT).evaluate()
    assert seen[0].tolist() == list(range(len(SPLIT)))


def test_answers_that_a_row_does_not_offer_have_no_probability(tmp_path: Path) -> None:
    counts = tuple(0 if i % 2 else 2 + (label == 2) for i, label in enumerate(SPLIT.labels))
    fewer = replace(SPLIT, offered=counts)
    pair = made("bara-gate")
    whole, found = (
        trainer_of(pair, tmp_path, eval_dataset=rows).predict(rows).predictions for rows in (SPLIT, fewer)
    )
    two = np.array([count == 2 for count in counts])
    assert two.any()
    assert np.isneginf(found[two, 2]).all()
    assert np.exp(found).sum(-1) == pytest.approx(1)
    assert found[~two] == pytest.approx(whole[~two])


def test_a_step_of_fewer_rows_weighs_each_as_much(seen: list[Batch], tmp_path: Path) -> None:
    """The last step of an epoch, of 4 rows and 2: the loss is the mean over the 6, not of two means."""
    pair = made("lora", num_data=len(SPLIT))
    rows = len(SPLIT) - 6
    some = SPLIT.take(range(rows))
    args = arguments(
        tmp_path,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=rows,
        max_steps=1,
        learning_rate=0.0,
    )
    trainer = bp.BaRATrainer(pair, args, train_dataset=some, answer_ids=ANSWERS)
    trainer.train()
    assert {len(batch) for batch in seen} == {4, rows % 4}
    loss = MeanFieldELBO().terms(*pair, some.batch(range(rows), ANSWERS)).loss.item() / len(SPLIT)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_loss_that_is_not_finite_stops_it(pieces: int, tmp_path: Path) -> None:
    model, guide = made("lora", num_data=len(SPLIT))
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    before = [p.clone() for p in parameters(model, guide)]
    with pytest.raises(TrainingError, match="nan"):
        trainer_of((model, guide), tmp_path, {"gradient_accumulation_steps": pieces}).train()
    for now, then in zip(parameters(model, guide), before, strict=True):
        assert torch.equal(now, then) or now.isnan().any()


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_products_of_half_precision_are_those_of_our_svi(
    kind: str, seen: list[Batch], tmp_path: Path
) -> None:
    pair = made("lora", num_data=len(SPLIT))
    twin = twin_of(pair)
    autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}[kind]
    trainer = trainer_of(pair, tmp_path, {kind: True, "max_steps": 2})
    trainer.train()
    batches = [*seen]
    seen.clear()
    optim = adamw(*twin, 0.01, weight_decay=0.1)
    svi = SVI(*twin, optim, scheduler=get_scheduler("linear", optim, 2, 2), clip_norm=1.0, autocast=autocast)
    for batch, logged in zip(batches, trainer.state.log_history, strict=False):
        svi.step(batch)
        assert logged["nll"] == pytest.approx(svi.last["nll"], rel=1e-6)
    for ours, theirs in zip(parameters(*pair), parameters(*twin), strict=True):
        assert_close(ours, theirs, atol=1e-6, rtol=0)

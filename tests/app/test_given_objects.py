"""Runs on language models that somebody loaded are read back as they were; no run's files are replaced."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

import bara_pyro as bp
from bara_pyro.errors import CheckpointError, ConfigError, DataError
from bara_pyro.extras.hub.export import export_lora
from bara_pyro.extras.hub.trainer.trainer import CHECKPOINTING
from bara_pyro.runs.manifest import check_run
from bara_pyro.runs.system import System
from bara_pyro.runs.writing import write_config

SHORT = {"task": "micro-wgs", "method": "lora", "steps": 2, "limit": 8, "lr": 3e-2}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[System, Path]:
    out = tmp_path_factory.mktemp("given") / "run"
    return bp.train(out=out, **SHORT), out  # type: ignore[arg-type]


def answers(run: System) -> list[dict]:
    rows = run.task.test[:4]
    return bp.predict(run, [{"id": row.id, "question": row.question} for row in rows], samples=0).rows


def test_a_model_in_half_precision_is_read_back_as_it_was(tmp_path: Path) -> None:
    """What is written down is of the model that was given, not the default, or answers would differ."""
    half = bp.load_backbone("microworld", dtype="bfloat16")
    run = bp.train(out=tmp_path / "half", model=half, **SHORT)  # type: ignore[arg-type]
    assert run.config.backbone.dtype == "bfloat16"
    with pytest.raises(ConfigError, match="dtype='float16', but the given language model has dtype bfloat16"):
        bp.train(out=tmp_path / "other", model=half, dtype="float16", **SHORT)  # type: ignore[arg-type]
    again = bp.load_system(tmp_path / "half")
    assert again.backbone.dtype == torch.bfloat16
    assert answers(again) == answers(run)
    with pytest.raises(ConfigError, match="has float32 weights"):  # of the same fingerprint
        bp.load_system(tmp_path / "half", backbone=bp.load_backbone("microworld"))


def test_weights_that_changed_their_type_are_not_written_down(
    plain: tuple[System, Path], tmp_path: Path
) -> None:
    run = bp.load_system(plain[1])
    run.backbone.lm.to(torch.bfloat16)
    with pytest.raises(ConfigError, match="has bfloat16 weights, but the run needs"):
        write_config(run, tmp_path)


def test_a_model_without_a_name_is_given_again(tmp_path: Path) -> None:
    loaded = bp.load_backbone("microworld")
    own = bp.Backbone(loaded.lm, loaded.tokenizer)
    run = bp.train(out=tmp_path / "own", model=own, **SHORT)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"backbone=bp\.Backbone\(model, tokenizer\)"):
        bp.load_system(tmp_path / "own")
    assert answers(bp.load_system(tmp_path / "own", backbone=own)) == answers(run)
    with pytest.raises(ConfigError, match="model is a LlamaForCausalLM: pass"):
        bp.train(out=tmp_path / "bare", model=loaded.lm, **SHORT)  # type: ignore[arg-type]
    assert not (tmp_path / "bare").exists()


def test_another_model_under_that_run_is_refused(plain: tuple[System, Path]) -> None:
    other = bp.load_backbone("microworld")
    with torch.no_grad():
        other.lm.get_input_embeddings().weight.add_(0.5)
    with pytest.raises(CheckpointError, match="was trained on a backbone with fingerprint"):
        bp.load_system(plain[1], backbone=other)


def test_a_run_is_not_written_over_by_its_export(plain: tuple[System, Path]) -> None:
    run, out = plain
    rows = run.split("test")
    with pytest.raises(ConfigError, match="is the folder of a run"):
        export_lora(run, out, rows=rows, compared_on=rows)
    check_run(out)
    assert answers(bp.load_system(out)) == answers(run)


def test_scores_are_not_written_over_those_of_another_run(plain: tuple[System, Path], tmp_path: Path) -> None:
    run, out = plain
    other = bp.train(out=tmp_path / "other", **{**SHORT, "steps": 3})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is the folder of another run"):
        bp.evaluate(other, samples=0, out=out)
    assert not (out / "metrics.json").exists()
    bp.evaluate(run, samples=0, out=out)
    assert (out / "metrics.json").exists()


def test_trainer_refuses_to_score_rows_without_labels(plain: tuple[System, Path], tmp_path: Path) -> None:
    """Their whole batch would be left out of the loss, and predictions and labels would not match."""
    run, _ = plain
    model = bp.models.LoRA(run.backbone, num_data=8)
    rows = run.split("test")
    some = bp.encode([*run.task.test[:3]], run.backbone.tokenizer)
    some = replace(some, labels=(some.labels[0], -1, some.labels[2]))
    name = next(key for key in CHECKPOINTING if key in {f.name for f in fields(TrainingArguments)})
    how: dict[str, Any] = {"use_cpu": True, "dataloader_pin_memory": False, "disable_tqdm": True, name: True}
    args = TrainingArguments(str(tmp_path), **how)
    pair = (model, bp.guides.DeltaGuide(model))
    with pytest.raises(TypeError):
        bp.BaRATrainer(pair, args, train_dataset=rows, answer_ids=run.answer_ids, foo=1)
    assert getattr(args, name)  # what was refused changed nothing
    assert not run.backbone.checkpointing
    trainer = bp.BaRATrainer(pair, args, train_dataset=rows, eval_dataset=some, answer_ids=run.answer_ids)
    with pytest.raises(DataError, match="1 of 3 rows to evaluate have no label"):
        trainer.evaluate()
    run.backbone.checkpointing = False


def test_a_task_that_has_been_read_takes_fewer_rows_and_no_columns(tmp_path: Path) -> None:
    task = bp.load_task("micro-wgs")
    run = bp.train(task=task, limit=12, train_rows=8, steps=1, out=tmp_path / "few")
    assert (len(run.task.train), len(run.task.test), run.config.task.limit) == (8, 12, 12)
    for name, value in {"text_column": "question", "validation_rows": 4, "data_dir": tmp_path}.items():
        with pytest.raises(ConfigError, match=f"{name}=.* no effect on a Task"):
            bp.train(task=task, steps=1, out=tmp_path / "read", **{name: value})
    with pytest.raises(ConfigError, match=r"revision=.* no effect on a list"):
        bp.train(task=[{"text": "a", "label": "b"}], revision="main", steps=1, out=tmp_path / "read")
    assert not (tmp_path / "read").exists()


def test_loaders_take_a_file_as_a_path(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(
        "text,label\n" + "".join(f"row {i},{'ab'[i % 2]}\n" for i in range(20))
    )
    assert bp.load_task(tmp_path / "mine.csv") == bp.load_task(str(tmp_path / "mine.csv"))
    lines = [json.dumps({"prompt": f"say {i}", "completion": "well"}) for i in range(10)]
    (tmp_path / "said.jsonl").write_text("\n".join(lines) + "\n")
    assert bp.load_replies(tmp_path / "said.jsonl") == bp.load_replies(str(tmp_path / "said.jsonl"))

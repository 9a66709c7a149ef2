"""What people get wrong: one clear sentence, an exit code, no traceback, nothing lost."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from app_cases import Bara, Place, assert_one_sentence, files_of, questions, save_backbone, write_rows
from safetensors.torch import load_file, save_file

from bara_pyro.errors import BackboneError, TrainingError
from bara_pyro.methods import METHODS
from bara_pyro.runs import train as training
from bara_pyro.runs.config import load_config
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.store import read_json, read_jsonl, read_tensors
from bara_pyro.runs.system import build_system


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to be spoiled."""
    return shutil.copytree(finished, tmp_path / "copy")


@pytest.mark.parametrize(
    ("extra", "parts"),
    [
        (["--method", "bora"], ["Unknown method 'bora'", "adalora, bara, bara-gate, blob"]),
        (["--task", "boolqq"], ["'boolqq'", "boolq", ".jsonl"]),
        (["--task", "micro-none"], ["'micro-none'", "micro-wgs"]),
        (["--set", "method.phi_prior=gama"], ["Unknown prior 'gama'", "exponential", "gamma"]),
        (["--set", "adapter.target_modules=[qproj]"], ["'qproj'", "q_proj"]),
        (["--set", "adapter.target_modules='.*query'"], ["'.*query'", "matches no linear layer"]),
        (["--set", "adapter.target_modules='('"], ["regular expression"]),
        (["--set", "nothing=1"], ["'nothing'", "train"]),
        (["--config", "absent.yaml"], ["absent.yaml"]),
        (["--device", "tpu"], ["'tpu'", "cpu"]),
        (["--dtype", "float8"], ["float8", "bfloat16"]),
        (["--lr", "0"], ["train.lr", "greater than 0"]),
        (["--labels", "numbers"], ["task.labels", "letters"]),
        (["--too-long", "cut"], ["task.too_long", "drop"]),
        (["--validation-rows", "1000"], ["1000"]),
        (["--model", "/no/such/folder"], ["/no/such/folder", "microworld"]),
        (["--set", "method.theta_prior=halfcauchy"], ["theta", "no analytic KL"]),
    ],
)
def test_wrong_arguments(
    extra: list[str], parts: list[str], place: Place, tmp_path: Path, bara: Bara
) -> None:
    assert_one_sentence(bara(*place.arguments(tmp_path / "run"), *extra), *parts)


def rows_with(change: dict) -> list[dict]:
    rows = questions()
    rows[2] = {**rows[2], **change}
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


BAD_FILES = {
    "no answer": (rows_with({"answer": None}), ["row 3", "answer"]),
    "no question": (rows_with({"question": None}), ["row 3", "question"]),
    "same id": (rows_with({"id": "fox-red"}), ["rows 1 and 3", "'fox-red'"]),
    "too few letters": (rows_with({"answer": "perhaps not"}), ["3 classes", "single tokens for only 2"]),
    "one label only": ([row for row in questions() if row["answer"] == "yes"], ["one answer only", "'yes'"]),
    "some choices": (rows_with({"choices": ["a", "b"], "answer": 0}), ["row 3", "choices"]),
    "empty": ([], ["is empty"]),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_wrong_rows(kind: str, place: Place, tmp_path: Path, bara: Bara) -> None:
    rows, parts = BAD_FILES[kind]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    result = bara(*Place(place.backbone, path).arguments(tmp_path / "run"))
    named = [] if kind == "too few letters" else [str(path)]
    assert_one_sentence(result, *named, *parts)
    assert not (tmp_path / "run").exists()


def test_an_unknown_label_and_a_broken_line(place: Place, tmp_path: Path, bara: Bara) -> None:
    test = write_rows(tmp_path / "test.jsonl", [{"question": "is the fox red ?", "answer": "maybe"}])
    result = bara(*place.arguments(tmp_path / "run"), "--test-file", test)
    assert_one_sentence(result, str(test), "row 1", "'maybe'", "no, yes")
    test.write_text('{"question": "is the fox red ?", "answer": "yes"}\n{"question\n')
    assert_one_sentence(bara(*place.arguments(tmp_path / "run"), "--test-file", test), str(test), "line 2")
    assert_one_sentence(bara(*place.arguments(tmp_path / "run"), "--test-file", tmp_path / "no"), "no")


def spoil_truncated(run: Path) -> None:
    path = run / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def spoil_foreign(run: Path) -> None:
    save_file(load_file(run / "guide.safetensors"), run / "guide.safetensors", {"format": "pt"})


def spoil_mixed(run: Path) -> None:
    shutil.copy(run / "adapter_model.safetensors", run / "guide.safetensors")


def spoil_config(run: Path) -> None:
    (run / "config.json").write_text('{"r": 8}')


def spoil_schema(run: Path) -> None:
    (run / "manifest.json").unlink()
    (run / "config.json").write_text(
        json.dumps({**read_json(run / "config.json"), "schema": 99, "manifest": None})
    )


SPOILT = {
    "truncated": (spoil_truncated, ["adapter_model.safetensors", "truncated"]),
    "foreign": (spoil_foreign, ["guide.safetensors", "SHA-256"]),
    "mixed": (spoil_mixed, ["guide.safetensors"]),
    "missing": (lambda run: (run / "guide.safetensors").unlink(), ["guide.safetensors", "missing"]),
    "not a run": (spoil_config, ["config.json", "SHA-256"]),
    "later version": (spoil_schema, ["schema 99"]),
    "no configuration": (lambda run: (run / "config.json").unlink(), ["config.json"]),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_run(kind: str, run: Path, tmp_path: Path, bara: Bara) -> None:
    spoil, parts = SPOILT[kind]
    spoil(run)
    rows = write_rows(tmp_path / "rows.jsonl", questions()[:2])
    assert_one_sentence(bara("predict", run, "--input", rows, "--output", tmp_path / "preds.jsonl"), *parts)
    assert not (tmp_path / "preds.jsonl").exists()


def test_another_backbone(place: Place, run: Path, tmp_path: Path, bara: Bara) -> None:
    other = save_backbone(tmp_path / "other", seed=1)
    before = files_of(run)
    assert_one_sentence(bara("evaluate", run, "--model", other), "fingerprint", "--model")
    assert files_of(run) == before


def interrupted(place: Place, out: Path, **settings: object) -> None:
    """Leave a run that was stopped after its first checkpoint."""
    values = {"train.steps": 8, "train.checkpoint_every": 2, "train.log_every": 1, **settings}
    config = load_config(
        overrides={"backbone.name": str(place.backbone), "task.name": str(place.rows), **values}
    )

    def stop(step: int, _: dict[str, float]) -> None:
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(build_system(config), out, on_step=stop)


def test_resuming_with_a_checkpoint_that_does_not_fit(place: Place, tmp_path: Path, bara: Bara) -> None:
    backbone = shutil.copytree(place.backbone, tmp_path / "backbone")
    rows = Path(shutil.copy(place.rows, tmp_path / "rows.jsonl"))
    out = tmp_path / "run"
    interrupted(Place(backbone, rows), out)
    checkpoint = out / "checkpoint.safetensors"
    content = checkpoint.read_bytes()
    save_backbone(backbone, seed=1)
    assert_one_sentence(bara("train", "--out", out, "--resume"), "another backbone")
    save_backbone(backbone)
    write_rows(rows, rows_with({"question": "is the fox blue ?"}))
    assert_one_sentence(bara("train", "--out", out, "--resume"), "another training data")
    write_rows(rows, questions())
    checkpoint.write_bytes(content[:-1])
    assert_one_sentence(bara("train", "--out", out, "--resume"), "checkpoint.safetensors", "truncated")
    save_file({"a": torch.ones(1)}, checkpoint)
    assert_one_sentence(bara("train", "--out", out, "--resume"), "checkpoint.safetensors", "not written by")
    checkpoint.write_bytes(content)
    assert bara("train", "--out", out, "--resume").code == 0


@pytest.mark.parametrize("method", ["lora", "bara", "bara-gate"])
def test_a_loss_that_is_not_finite_keeps_the_last_good_state(
    method: str, place: Place, tmp_path: Path, bara: Bara
) -> None:
    out = tmp_path / "run"
    result = bara(*place.arguments(out, method), "--lr", "1e30")
    assert_one_sentence(
        result, "Training stopped at step 2", "parameters after step 0 are kept", "learning rate"
    )
    assert any(site in result.err for site in ("of y", "theta/", "phi", "lora_"))
    assert [record["step"] for record in read_jsonl(out / "train_log.jsonl")] == [1]
    for name in ("adapter_model.safetensors", "guide.safetensors"):
        tensors, metadata = read_tensors(out / name)
        assert all(value.isfinite().all() and value.abs().max() < 100 for value in tensors.values())
        assert metadata["step"] == 0
    assert load_system(out).config.method.name == method


def test_the_state_kept_is_the_one_before_the_step_that_broke(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(overrides={"backbone.name": str(place.backbone), "task.name": str(place.rows)})
    states: list[list[torch.Tensor]] = []
    real = training.SVI.step

    def step(svi: training.SVI, *batches: object) -> float:
        states.append([p.detach().clone() for p in svi.parameters])
        if len(states) == 5:
            raise TrainingError("The loss is nan (KL of phi): lower the learning rate.")
        return real(svi, *batches)

    monkeypatch.setattr(training.SVI, "step", step)
    system = build_system(config)
    with pytest.raises(TrainingError, match=r"stopped at step 5, the parameters after step 3 .*KL of phi"):
        training.train(system, tmp_path / "run")
    # The fifth loss was computed with the parameters after step 4: the last good ones are those after step 3.
    kept = load_system(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(training.make_svi(kept).parameters, states[3], strict=True))


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")
def test_activation_checkpointing_is_refused(place: Place) -> None:
    system = build_system(
        load_config(overrides={"backbone.name": str(place.backbone), "task.name": str(place.rows)})
    )
    system.backbone.lm.gradient_checkpointing_enable()
    svi = training.make_svi(system)
    batch = system.split("train").batch([0, 1], system.answer_ids)
    with pytest.raises(BackboneError, match="Activation checkpointing is on"):
        svi.step(batch)


@pytest.mark.parametrize(
    "file", ["checkpoint", "train_log", "adapter_model", "guide", "predictions", "metrics"]
)
def test_a_disk_that_fills_up(
    file: str, place: Place, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written before stays, and the run goes on once there is space."""
    out = tmp_path / "run"
    arguments = place.arguments(out, **{"train.checkpoint_every": 3})
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if Path(target).name.startswith(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        assert_one_sentence(bara(*arguments), f"{file}", "No space left on device", "free space")
    assert not [name for name in files_of(out) if name.endswith(".part")]
    assert bara("train", "--out", out, "--resume").code == 0
    whole = tmp_path / "whole"
    assert bara(*place.arguments(whole, **{"train.checkpoint_every": 3})).code == 0
    for name in ("adapter_model.safetensors", "guide.safetensors", "predictions.jsonl"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_a_log_that_cannot_be_written(
    place: Place, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("bara_pyro.runs.train.os.fsync", full)
    result = bara(*place.arguments(tmp_path / "run", **{"train.checkpoint_every": 3}))
    assert_one_sentence(result, "No space left on device")


def test_the_installed_command_prints_no_traceback(place: Place, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "bara_pyro.cli.app",
        *place.arguments(tmp_path / "run"),
        "--method",
        "bora",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    known = ", ".join(sorted(METHODS))
    assert done.stderr == f"Error: Unknown method 'bora': choose one of {known}.\n"
    assert done.stdout == ""


def test_an_empty_text_is_said_before_the_run_is_read(tmp_path: Path, bara: Bara) -> None:
    assert_one_sentence(bara("inspect", str(tmp_path), "--text", "the fox", "--text", " "), "--text", "empty")

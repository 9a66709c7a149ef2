"""Memory that runs out after the last step, and folders that two trainings want."""

import json
import shutil
from importlib import import_module
from pathlib import Path

import pytest
from app_cases import Bara, Place, assert_one_sentence, files_of

from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.runs.claim import claimed
from bara_pyro.runs.config import load_config
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.manifest import TRAINED, record
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_jsonl


def told(place: Place, method: str = "laplace", steps: int = 6) -> list[object]:
    short = ["--steps", steps, "--log-every", 1, "--samples", 0]
    return ["train", "--method", method, "--model", place.backbone, "--task", place.rows, *short]


def test_what_is_fitted_after_training_can_be_tried_with_less_memory(
    place: Place, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not above: methods are listed in the order in which they were imported.
    laplace = import_module("bara_pyro.methods.laplace")
    real, sizes = laplace.batches, []

    def batches(rows, answers, size: int, **how):
        sizes.append(size)
        if size > 2:
            raise RuntimeError("out of memory")
        return real(rows, answers, size, **how)

    monkeypatch.setattr(laplace, "batches", batches)
    out = tmp_path / "run"
    failed = bara(*told(place), "--out", out)
    assert failed.code != 0
    assert "checkpoint.safetensors" in files_of(out)
    before = read_jsonl(out / "train_log.jsonl")
    assert [row["step"] for row in before] == [*range(1, 7)]
    done = bara("train", "--out", out, "--resume", "--set", "predict.batch_size=2")
    assert done.code == 0, done.err
    assert sizes == [8, 2]
    assert read_jsonl(out / "train_log.jsonl") == before  # no step again
    assert load_system(out).config.predict.batch_size == 2
    assert "checkpoint.safetensors" not in files_of(out)
    assert_one_sentence(bara("train", "--out", out, "--resume", "--lr", 0.5), "another train.lr")


def test_what_costs_memory_alone_may_change_in_a_run_that_is_gone_on_with(
    place: Place, tmp_path: Path, bara: Bara
) -> None:
    whole, half = tmp_path / "whole", tmp_path / "half"
    config = place.config(train__steps=8, train__checkpoint_every=2)
    train(build_system(config), whole)

    def stop(step: int, _: dict[str, float]) -> None:
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(build_system(config), half, on_step=stop)
    done = bara(
        *("train", "--out", half, "--resume", "--set", "train.checkpointing=true"),
        *("--set", "predict.memory_budget=1000000"),
    )
    assert done.code == 0, done.err
    stored = json.loads((half / "bara_config.json").read_text())
    assert stored["config"]["train"]["checkpointing"] is True
    assert stored["config"]["predict"]["memory_budget"] == 1_000_000
    assert stored["config_hash"] == load_system(half).config.hash == load_system(whole).config.hash
    for name in ("adapter_model.safetensors", "guide.safetensors"):
        assert (half / name).read_bytes() == (whole / name).read_bytes()


def test_what_else_a_run_depends_on_has_another_hash() -> None:
    plain = load_config(overrides={"method": "laplace"})
    for key, value in (("train.checkpointing", True), ("predict.batch_size", 3)):
        assert load_config(overrides={"method": "laplace", key: value}).hash == plain.hash
    assert load_config(overrides={"method": "laplace", "train.batch_size": 2}).hash != plain.hash
    assert load_config(overrides={"method": "laplace", "method.subset": "last"}).hash != plain.hash


def test_two_trainings_of_one_folder(place: Place, tmp_path: Path, bara: Bara) -> None:
    out = tmp_path / "run"
    assert bara(*told(place, "lora"), "--out", out).code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with claimed(out):
        assert_one_sentence(bara(*told(place, "lora"), "--out", out, "--overwrite"), "Another process is")
        assert_one_sentence(bara("train", "--out", out, "--resume"), "Another process is training")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert bara("train", "--out", out, "--resume").code == 0
    with pytest.raises(ConfigError, match="Another process"), claimed(tmp_path), claimed(tmp_path):
        pass
    with claimed(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()


def test_weights_of_another_run_are_not_taken_for_this_ones(place: Place, tmp_path: Path) -> None:
    """As an older training leaves them that ends after a newer one has begun in its folder."""
    for name, rate in (("one", 1e-2), ("two", 1e-3)):
        train(build_system(place.config(method="lora", train__lr=rate, train__steps=3)), tmp_path / name)
    for name in ("adapter_model.safetensors", "guide.safetensors"):
        shutil.copy(tmp_path / "one" / name, tmp_path / "two" / name)
    record(tmp_path / "two", *TRAINED)
    with pytest.raises(CheckpointError, match="another training wrote into the folder"):
        load_system(tmp_path / "two")

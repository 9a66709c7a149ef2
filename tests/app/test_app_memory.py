"""Memory that runs out after the last step, and folders that two trainings want."""

import shutil
from importlib import import_module
from pathlib import Path

import pytest
from app_cases import Bara, Place, assert_one_sentence, files_of

from bara_pyro.atomic import claimed
from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.runs.config import load_config
from bara_pyro.runs.devices import training_bytes
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.manifest import TRAINED, record_files
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_jsonl


def told(place: Place, method: str = "laplace", steps: int = 6) -> list[object]:
    short = ["--steps", steps, "--samples", 0, "--no-calibrated"]
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


def test_what_else_a_run_depends_on_has_another_hash() -> None:
    plain = load_config(overrides={"method": "laplace"})
    for key, value in (("train.checkpointing", True), ("predict.batch_size", 3), ("backbone.shortcuts", [])):
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
    record_files(tmp_path / "two", *TRAINED)
    with pytest.raises(CheckpointError, match="another run wrote into the folder"):
        load_system(tmp_path / "two")


def test_what_cannot_fit_is_refused_with_the_estimate(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By hand: r (in + out) of each module six times, hidden states and units of the longest rows."""
    config = place.config(train__batch_size=8)
    system = build_system(config)
    split = system.split("train")
    widths = sum(target.in_features + target.out_features for target in system.model.targets)
    lengths = sorted((len(ids) for ids in split.token_ids), reverse=True)[:8]
    inside = [target for target in system.model.targets if not target.is_head]
    needed = 4 * (6 * 8 * widths + 8 * sum(lengths) * 16 * 2 + 8 * sum(lengths) * len(inside))
    assert training_bytes(config, system.backbone, split) == needed
    less = place.config(train__batch_size=8, train__checkpointing=True)
    assert training_bytes(less, system.backbone, split) == needed - 4 * 7 * sum(lengths) * 16 * 2
    twice = place.config(train__batch_size=2 * len(split))
    rows = 2 * sum(len(ids) for ids in split.token_ids)
    whole = 4 * (6 * 8 * widths + 8 * rows * 16 * 2 + 8 * rows * len(inside))
    assert training_bytes(twice, system.backbone, split) == whole
    monkeypatch.setattr("bara_pyro.runs.devices.memory", lambda device: needed)
    build_system(config)
    monkeypatch.setattr("bara_pyro.runs.devices.memory", lambda device: needed - 1)
    with pytest.raises(ConfigError, match=r"rank 8 and 8 rows at a time needs at least .* GiB, but cpu has"):
        build_system(config)

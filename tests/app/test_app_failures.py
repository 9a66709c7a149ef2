"""What fails while a run is made: one clear sentence, an exit code, no traceback, nothing lost."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from app_cases import Bara, Place, assert_one_sentence, files_of

from bara_pyro.cli import running
from bara_pyro.core.svi import SVI
from bara_pyro.errors import CheckpointError, TrainingError
from bara_pyro.methods import METHODS
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.steps import make_svi
from bara_pyro.runs.store import read_tensors
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_jsonl


def test_a_loss_that_is_not_finite_keeps_the_last_good_state(
    place: Place, tmp_path: Path, bara: Bara
) -> None:
    out = tmp_path / "run"
    result = bara(*place.arguments(out, "bara-gate"), "--lr", "1e30")
    assert_one_sentence(result, "step 2", "step 0", "learning rate")
    assert any(site in result.err for site in ("of y", "theta/", "phi", "lora_"))
    assert [record["step"] for record in read_jsonl(out / "train_log.jsonl")] == [1]
    for name in ("adapter_model.safetensors", "guide.safetensors"):
        tensors, metadata = read_tensors(out / name)
        assert all(value.isfinite().all() and value.abs().max() < 100 for value in tensors.values())
        assert metadata["step"] == 0
    assert load_system(out).config.method.name == "bara-gate"


def test_the_state_kept_is_the_one_before_the_step_that_broke(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[list[torch.Tensor]] = []
    real = SVI.step

    def step(svi: SVI, *batches: object) -> float:
        states.append([p.detach().clone() for p in svi.parameters])
        if len(states) == 5:
            raise TrainingError("The loss is nan (KL of phi): lower the learning rate.")
        return real(svi, *batches)

    monkeypatch.setattr(SVI, "step", step)
    system = build_system(place.config())
    with pytest.raises(TrainingError, match=r"stopped at step 5, the parameters after step 3 .*KL of phi"):
        train(system, tmp_path / "run")
    # The fifth loss was computed with the parameters after step 4: the last good ones are those after step 3.
    kept = load_system(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(make_svi(kept).parameters, states[3], strict=True))


@pytest.fixture(scope="module")
def whole(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing stopped."""
    out = tmp_path_factory.mktemp("whole") / "run"
    settings = {"train__steps": 8, "train__checkpoint_every": 3}
    running.run(place.config(**settings, predict__samples=[0, 3]), out)
    return out


@pytest.mark.parametrize("file", ["checkpoint", "guide", "metrics"])
def test_a_disk_that_fills_up(
    file: str, place: Place, whole: Path, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
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
    for name in ("adapter_model.safetensors", "guide.safetensors", "predictions.jsonl"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_a_log_that_cannot_be_written(
    place: Place, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("bara_pyro.runs.steps.os.fsync", full)
    result = bara(*place.arguments(tmp_path / "run", **{"train.checkpoint_every": 3}))
    assert_one_sentence(result, "No space left on device")


def test_the_installed_command_prints_no_traceback(place: Place, tmp_path: Path) -> None:
    arguments = place.arguments(tmp_path / "run", "bora")
    command = [sys.executable, "-m", "bara_pyro.cli.app", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert all(f" {name}" in done.stderr for name in ("'bora'", *METHODS))


def test_a_language_model_that_computes_otherwise(place: Place, tmp_path: Path) -> None:
    """The same weights under another configuration are another model."""
    backbone = shutil.copytree(place.backbone, tmp_path / "backbone")
    out = tmp_path / "run"
    config = Place(backbone, place.rows).config(train__steps=2)
    train(build_system(config), out)
    settings = json.loads((backbone / "config.json").read_text())
    settings["rms_norm_eps"] = 0.1
    (backbone / "config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"have changed since .* \(rms_norm_eps is 0.1, was 1e-06\)"):
        load_system(out)

"""A run is gone on with where it stopped, wherever its model and rows are by now, and with no others."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from app_cases import Bara, Place, assert_one_sentence, files_below, questions, save_backbone, write_rows
from safetensors.torch import load_file, save_file

import bara_pyro as bp
from bara_pyro.atomic import claimed
from bara_pyro.cli import running
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.manifest import how_to_resume
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_json

SETTINGS = {"train__steps": 6, "train__checkpoint_every": 2, "predict__samples": [0]}
WEIGHTS = ("adapter_model.safetensors", "guide.safetensors")


class Unplugged(Exception):
    """What stops a training half-way here."""


@pytest.fixture
def stopped(place: Place, tmp_path: Path) -> tuple[Place, Path]:
    """A run that was stopped after four of six steps, and where its model and rows were."""
    was = Place(shutil.copytree(place.backbone, tmp_path / "old" / "lm"), tmp_path / "old" / "rows.jsonl")
    shutil.copy(place.rows, was.rows)

    def unplug(step: int, _: dict[str, float]) -> None:
        if step == 5:
            raise Unplugged

    with pytest.raises(Unplugged):
        train(build_system(was.config(**SETTINGS)), tmp_path / "run", on_step=unplug)
    return was, tmp_path / "run"


@pytest.fixture(scope="module")
def whole(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, never stopped, on the model and rows in another place."""
    out = tmp_path_factory.mktemp("whole") / "run"
    running.run(place.config(**SETTINGS), out)
    return out


def same_weights(one: Path, other: Path) -> bool:
    """Compare tensors: beside them stands a hash of the settings, with the places of model and rows."""
    ours, theirs = (
        {name + k: v for name in WEIGHTS for k, v in load_file(f / name).items()} for f in (one, other)
    )
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_a_run_in_training_is_waited_for(stopped: tuple[Place, Path], bara: Bara) -> None:
    """It is not said to have stopped."""
    _, out = stopped
    for command in ("evaluate", "inspect"):
        with claimed(out):
            assert_one_sentence(bara(command, out), "Another process is training", "wait until")
        assert_one_sentence(bara(command, out), "stopped before its end", "--resume")


def test_a_run_goes_on_where_its_model_and_rows_have_moved(
    stopped: tuple[Place, Path], whole: Path, tmp_path: Path, bara: Bara
) -> None:
    was, out = stopped
    (tmp_path / "old").rename(tmp_path / "new")
    resume = ("train", "--resume", "--out", out)
    assert_one_sentence(bara(*resume), str(was.rows), "--task")
    rows, lm = tmp_path / "new" / "rows.jsonl", tmp_path / "new" / "lm"
    assert_one_sentence(bara(*resume, "--task", rows), str(was.backbone))
    assert bara(*resume, "--task", rows, "--model", lm).code == 0
    assert same_weights(out, whole)
    assert (out / "predictions.jsonl").read_bytes() == (whole / "predictions.jsonl").read_bytes()
    assert read_json(out / "bara_config.json")["config"]["task"]["name"] == str(was.rows)
    # Finished, it is scored again where everything is now; another model or other rows are no places.
    before = {name: (out / name).read_bytes() for name in (*WEIGHTS, "train_log.jsonl", "predictions.jsonl")}
    (out / "metrics.json").unlink()  # as of a run that was killed after training
    assert bara(*resume, "--task", rows, "--model", lm).code == 0
    assert (out / "metrics.json").exists()
    other = save_backbone(tmp_path / "other", seed=1)
    assert_one_sentence(bara(*resume, "--task", rows, "--model", other), "fingerprint", "--model")
    write_rows(rows, [{**questions()[0], "question": "fox ?"}, *questions()[1:]])
    assert_one_sentence(bara(*resume, "--task", rows, "--model", lm), "has changed since")
    assert_one_sentence(bara(*resume, "--task", "boolq"), "another task.name")
    assert_one_sentence(bara(*resume, "--method", "lora"), "the method 'bara-gate'")
    assert {name: (out / name).read_bytes() for name in before} == before


def test_a_half_way_run_goes_on_with_its_own_checkpoint_model_and_rows_alone(
    stopped: tuple[Place, Path], whole: Path, bara: Bara
) -> None:
    was, out = stopped
    checkpoint = out / "checkpoint.safetensors"
    content, resume = checkpoint.read_bytes(), ("train", "--out", out, "--resume")
    save_backbone(was.backbone, seed=1)
    assert_one_sentence(bara(*resume), "was trained on a backbone with fingerprint")
    save_backbone(was.backbone)
    first, *others = questions()
    write_rows(was.rows, [{**first, "question": "is the fox blue ?"}, *others])
    assert_one_sentence(bara(*resume), "another training data")
    write_rows(was.rows, questions())
    assert checkpoint.read_bytes() == content
    checkpoint.write_bytes(content[:-1])
    assert_one_sentence(bara(*resume), "checkpoint.safetensors", "truncated")
    save_file({"a": torch.ones(1)}, checkpoint)
    assert_one_sentence(bara(*resume), "checkpoint.safetensors", "not written by")
    checkpoint.write_bytes(content)
    # What costs memory alone may change, and is written down; nothing else follows from it.
    more = ("--set", "train.checkpointing=true", "--set", "predict.memory_budget=1000000")
    assert bara(*resume, *more).code == 0
    stored = read_json(out / "bara_config.json")
    assert stored["config"]["train"]["checkpointing"] is True
    assert stored["config"]["predict"]["memory_budget"] == 1_000_000
    assert stored["config_hash"] == load_system(out).config.hash
    assert same_weights(out, whole)
    assert bara(*resume, "--set", "train.checkpointing=false").code == 0  # scores the finished run again


def test_rows_from_python_are_gone_on_with_from_a_file(place: Place, tmp_path: Path, bara: Bara) -> None:
    rows, out = [json.loads(line) for line in place.rows.read_text().splitlines()], tmp_path / "run"
    config = place.config(**SETTINGS, task__name="mine")
    train(build_system(config, task=bp.task_from_rows(rows, name="mine")), out)
    assert_one_sentence(bara("train", "--resume", "--out", out), "rows given in Python", "--task")
    assert bara("train", "--resume", "--out", out, "--task", place.rows).code == 0


def test_commands_that_are_suggested_can_be_typed() -> None:
    assert "`bara train --resume --out 'my runs/a'`" in how_to_resume(Path("my runs/a"))
    assert "`bara train --resume --out runs/a`" in how_to_resume(Path("runs/a"))


def test_a_run_goes_on_with_its_own_settings_alone(place: Place, tmp_path: Path) -> None:
    """Finished or half-way: none has to be given again, another is refused by its name, nothing is lost."""
    out = tmp_path / "run"
    how = {"method": "bara-gate", "steps": 3, "r": 4, "lr": 0.02}
    first = bp.train(task=place.rows, model=place.backbone, out=out, **how)  # type: ignore[arg-type]
    kept = files_below(out)
    assert bp.train(out=out, resume=True).config == first.config
    for given, named in (
        ({"lr": 0.5}, r"another train\.lr:"),
        ({"method": "lora"}, "the method 'bara-gate'"),
        ({"method": {"name": "bara-gate", "beta_phi": 0.5}}, r"another method\.beta_phi:"),
        ({"steps": 9, "r": 2}, r"another adapter\.r, train\.steps:"),
        ({"task": "micro-wgs"}, r"another task\.name:"),
    ):
        with pytest.raises(bp.BaraError, match=named):
            bp.train(out=out, resume=True, **given)  # type: ignore[arg-type]
    # Whoever calls the loop with another system would train anew over what is there.
    system = build_system(place.config(method="bara-gate", adapter__r=4, train__steps=3, train__lr=0.5))
    with pytest.raises(bp.BaraError, match=r"another .*train\.lr"):
        train(system, out, resume=True)
    assert files_below(out) == kept
    for name in (*WEIGHTS, "manifest.json"):
        (out / name).unlink()
    with pytest.raises(bp.BaraError, match="another seed"):
        bp.train(out=out, resume=True, seed=5)
    bp.train(out=out, resume=True)
    assert files_below(out).keys() == kept.keys()
    assert files_below(out)["guide.safetensors"] == kept["guide.safetensors"]

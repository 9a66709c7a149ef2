"""Settings that cost less and change nothing, and the number of rows to train on, from a run's settings."""

from pathlib import Path

import pytest
import torch
from app_cases import Place

import bara_pyro as bp
from bara_pyro.core.prediction import REPLAYED
from bara_pyro.data import Task
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.fast import SHORTCUTS, predictions, replay
from bara_pyro.fast.capture import Recording
from bara_pyro.lm.loading import load_backbone
from bara_pyro.runs import steps
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.rows import load_data
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_jsonl

UPPER = r".*\.1\..*(q_proj|v_proj)|lm_head"


def trained(place: Place, out: Path, **settings: object) -> tuple[list[torch.Tensor], list[dict], str]:
    settings = {"train__steps": 5, "method__name": "bara-gate", **settings}
    system = build_system(place.config(**settings))
    train(system, out)
    log = [{k: v for k, v in line.items() if k != "seconds"} for line in read_jsonl(out / "train_log.jsonl")]
    return [p.detach() for p in system.model.parameters()], log, " ".join(system.task.notes)


def test_checkpointing_is_the_same_training(place: Place, tmp_path: Path) -> None:
    plain = trained(place, tmp_path / "plain")
    again = trained(place, tmp_path / "again", train__checkpointing=True)
    assert all(torch.equal(a, b) for a, b in zip(plain[0], again[0], strict=True))
    assert plain[1] == again[1]


def test_replayed_steps_are_the_same_training(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays, run = [], Recording.replay
    monkeypatch.setattr(Recording, "replay", lambda self, batch: replays.append(batch) or run(self, batch))
    monkeypatch.setattr(replay, "AFTER", 1)
    plain = trained(place, tmp_path / "plain", train__steps=8, train__capture="off")
    assert not replays
    again = trained(place, tmp_path / "again", train__steps=8)
    assert len(replays) > 3
    assert all(torch.equal(a, b) for a, b in zip(plain[0], again[0], strict=True))
    assert plain[1] == again[1]


@pytest.mark.parametrize(("word", "recorded"), [("auto", True), ("on", True), ("off", False)])
def test_replayed_predictions_are_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch, word: str, recorded: bool
) -> None:
    monkeypatch.setattr(predictions, "AFTER", 1)
    system = build_system(place.config(predict__capture=word, method__name="bara-gate"))
    found = [draw(system, system.split("test"), 3) for _ in range(4)]
    assert all(torch.equal(found[0], again) for again in found[1:])
    replays = REPLAYED.get(system.guide)
    assert bool(replays and replays.recordings) == recorded
    assert system.config.hash == system.config.updated("predict", capture="auto").hash


@pytest.mark.parametrize("on", [[], ["prefixes"]])
def test_shortcuts_that_are_off_are_the_same_training(place: Place, tmp_path: Path, on: list[str]) -> None:
    plain = trained(place, tmp_path / "plain", adapter__target_modules=UPPER)
    without = trained(place, tmp_path / "without", adapter__target_modules=UPPER, backbone__shortcuts=on)
    for a, b in zip(plain[0], without[0], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    again = load_system(tmp_path / "without")
    assert again.backbone.shortcuts == {*on}
    assert again.config.hash == load_system(tmp_path / "plain").config.hash


def test_a_given_language_model_keeps_its_shortcuts(place: Place, tmp_path: Path) -> None:
    backbone = load_backbone(str(place.backbone))
    backbone.shortcuts -= {"answer_rows"}
    run = bp.train(model=backbone, task=place.rows, method="lora", steps=1, out=tmp_path / "run")
    assert run.backbone.shortcuts == set(SHORTCUTS) - {"answer_rows"}
    assert run.config.backbone.shortcuts == [name for name in SHORTCUTS if name != "answer_rows"]


def test_long_trainings_write_fewer_lines(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "LOG_EVERY", 2)
    for total, expected in ((19, [*range(1, 20)]), (21, [*range(2, 21, 2), 21])):
        _, log, _ = trained(place, tmp_path / str(total), method__name="lora", train__steps=total)
        assert [line["step"] for line in log] == expected


def test_so_many_training_rows(place: Place) -> None:
    whole = load_data(place.config())
    some = load_data(place.config(task__train_rows=7))
    assert some.train == whole.train[:7]
    assert some.test == whole.test
    held = load_data(place.config(task__train_rows=7, task__validation_rows=3))
    assert (len(held.train), len(held.validation)) == (4, 3)
    assert not {row.id for row in held.train} & {row.id for row in held.validation}


@pytest.mark.parametrize("seed", [None, 1])
def test_validation_rows_that_a_task_brings_are_no_training_rows(seed: int | None) -> None:
    given = {"task.name": "micro-wgs", "task.train_rows": 80, "task.train_rows_seed": seed}
    whole, some = (
        load_data(load_config(overrides={"task.name": "micro-wgs"})),
        load_data(load_config(overrides=given)),
    )
    assert len(some.train) == 80
    assert set(some.train) < set(whole.train)
    assert some.validation == whole.validation
    assert len(whole.validation) > 80


def test_training_rows_drawn_at_random(place: Place) -> None:
    """All of one seed are among those of more rows; other seeds draw others; validation rows stay apart."""

    def drawn(by: int, rows: int = 7, **task: int) -> Task:
        settings = {f"task__{key}": value for key, value in task.items()}
        return load_data(place.config(task__train_rows=rows, task__train_rows_seed=by, **settings))

    whole = load_data(place.config())
    first, again, other = drawn(1), drawn(1), drawn(2)
    assert first.train == again.train != other.train
    assert first.train != whole.train[:7]
    assert len({row.id for row in first.train}) == 7
    assert set(first.train) < set(drawn(1, 9).train) < set(whole.train)
    assert first.test == whole.test
    assert "7 training rows drawn at random (seed 1)" in first.notes
    assert drawn(1, len(whole.train)).train == whole.train
    held = drawn(1, 7, validation_rows=3, seed=1)
    assert (len(held.train), len(held.validation)) == (4, 3)
    assert not set(held.train) & set(held.validation)
    with pytest.raises(ConfigError, match="train_rows_seed=1 needs train_rows"):
        load_config(overrides={"task.train_rows_seed": 1})


def test_more_training_rows_than_there_are(place: Place) -> None:
    with pytest.raises(DataError, match="train_rows=100000 exceeds the"):
        load_data(place.config(task__train_rows=100_000))
    with pytest.raises(ConfigError, match=r"train_rows=3 leaves no row .*validation_rows=3"):
        load_config(overrides={"task.train_rows": 3, "task.validation_rows": 3})

"""What a third look from outside found: things that move, commands that advise what they cannot do."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from app_cases import Bara, Place, assert_one_sentence, questions, save_backbone, write_rows

import bara_pyro as bp
from bara_pyro.cli import running
from bara_pyro.data import load_task
from bara_pyro.data.tables import read_table
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.registry import load_plugin
from bara_pyro.runs.atomic import write_jsonl
from bara_pyro.runs.claim import claimed
from bara_pyro.runs.manifest import how_to_resume
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from bara_pyro.untrusted.files import read_json, read_jsonl

NAMES = {"yes": "very likely", "no": "not at all"}
SETTINGS = {"train__steps": 6, "train__checkpoint_every": 2, "predict__samples": [0]}


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


def test_a_run_in_training_is_waited_for(stopped: tuple[Place, Path], bara: Bara) -> None:
    """It is not said to have stopped."""
    _, out = stopped
    for command in ("evaluate", "inspect"):
        with claimed(out):
            assert_one_sentence(
                bara(command, out), "Another process is training", "wait until it has finished"
            )
        assert_one_sentence(bara(command, out), "stopped half-way", "--resume")


def test_a_run_goes_on_where_its_model_and_rows_have_moved(
    stopped: tuple[Place, Path], tmp_path: Path, bara: Bara
) -> None:
    was, out = stopped
    running.run(was.config(**SETTINGS), tmp_path / "whole")
    (tmp_path / "old").rename(tmp_path / "new")
    resume = ("train", "--resume", "--out", out)
    assert_one_sentence(bara(*resume), str(was.rows), "say where it is now with --task")
    rows, lm = tmp_path / "new" / "rows.jsonl", tmp_path / "new" / "lm"
    assert_one_sentence(bara(*resume, "--task", rows), str(was.backbone))
    assert bara(*resume, "--task", rows, "--model", lm).code == 0
    for name in ("guide.safetensors", "adapter_model.safetensors", "predictions.jsonl"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert read_json(out / "bara_config.json")["config"]["task"]["name"] == str(was.rows)
    # Finished, it is scored again where everything is now; another model or other rows are no places.
    assert bara(*resume, "--task", rows, "--model", lm).code == 0
    other = save_backbone(tmp_path / "other", seed=1)
    assert_one_sentence(bara(*resume, "--task", rows, "--model", other), "fingerprint", "--model")
    write_rows(rows, [{**questions()[0], "question": "fox ?"}, *questions()[1:]])
    assert_one_sentence(bara(*resume, "--task", rows, "--model", lm), "has changed since")
    assert_one_sentence(bara(*resume, "--task", "boolq"), "another task.name")


@pytest.mark.parametrize("changed", ["model", "rows"])
def test_a_half_way_run_does_not_go_on_with_others(
    stopped: tuple[Place, Path], tmp_path: Path, bara: Bara, changed: str
) -> None:
    _, out = stopped
    before = (out / "checkpoint.safetensors").read_bytes()
    if changed == "model":
        given, said = ("--model", save_backbone(tmp_path / "other", seed=1)), "fingerprint"
    else:
        others = [{**row, "question": f"the {row['question']}"} for row in questions()]
        given, said = ("--task", write_rows(tmp_path / "others.jsonl", others)), "another training data"
    assert_one_sentence(bara("train", "--resume", "--out", out, *given), said)
    assert (out / "checkpoint.safetensors").read_bytes() == before


def test_rows_from_python_are_gone_on_with_from_a_file(place: Place, tmp_path: Path, bara: Bara) -> None:
    rows, out = [json.loads(line) for line in place.rows.read_text().splitlines()], tmp_path / "run"
    train(
        build_system(place.config(**SETTINGS, task__name="mine"), task=bp.task_from_rows(rows, name="mine")),
        out,
    )
    assert_one_sentence(bara("train", "--resume", "--out", out), "rows given in Python", "--task")
    assert bara("train", "--resume", "--out", out, "--task", place.rows).code == 0


def test_only_train_says_resume(run: Path, bara: Bara, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    for command in (("prune", run), ("export", run), ("push", run, "me/it")):
        sentence = bara(*command, "--out", other)
        assert_one_sentence(sentence, "already holds a run", "--overwrite")
        assert "--resume" not in sentence.err
    converted = bara("backbone", "convert", tmp_path / "a.gguf", "--out", other)
    assert_one_sentence(converted, "already holds a run", "another folder")
    assert "--overwrite" not in converted.err


def test_commands_that_are_suggested_can_be_typed() -> None:
    python = " (in Python: resume=True)"
    assert how_to_resume(Path("my runs/a")) == f"`bara train --resume --out 'my runs/a'`{python}"
    assert how_to_resume(Path("runs/a")) == f"`bara train --resume --out runs/a`{python}"


def test_a_report_goes_where_it_is_asked_for(run: Path, bara: Bara, tmp_path: Path) -> None:
    out = tmp_path / "report"
    quick = ("inspect", run, "--rows", "8", "--samples", "2")
    assert bara(*quick, "--out", out).code == 0
    assert (out / "index.html").is_file()
    assert not (run / "report").exists()
    assert_one_sentence(bara(*quick, "--out", out), "already holds results", "--overwrite")
    other = shutil.copytree(run, tmp_path / "other")
    assert_one_sentence(bara(*quick, "--out", other, "--overwrite"), "is a run")
    assert_one_sentence(bara(*quick, "--out", run, "--overwrite"), "is a run")


@pytest.mark.parametrize("group", ["backbone", "microworld"])
def test_a_group_by_itself_prints_its_help(bara: Bara, group: str) -> None:
    found = bara(group)
    assert found.code == 0
    assert f"bara {group}" in found.out


def test_an_unknown_section_is_told_of_the_methods_too(bara: Bara, tmp_path: Path) -> None:
    found = bara("train", "--out", tmp_path / "run", "--set", "metod.form=gate")
    assert_one_sentence(found, "metod", "adapter, backbone, method, predict, seed, task, train")


@pytest.mark.parametrize("name", ["id", "ID", "Id"])
def test_the_column_of_ids(place: Place, tmp_path: Path, name: str) -> None:
    rows = [
        {"text": row["question"], "label": row["answer"], name: f"row {n}"}
        for n, row in enumerate(questions())
    ]
    task = load_task(str(write_rows(tmp_path / "rows.jsonl", rows)))
    assert {row.id for row in (*task.train, *task.test)} == {f"row {n}" for n in range(len(rows))}


def test_blank_lines_of_one_column_are_rows(tmp_path: Path) -> None:
    file = tmp_path / "texts.csv"
    file.write_text("\ntext\nfirst\n\nthird\n\n\n")
    assert [row["text"] for row in read_table(file).rows] == ["first", "", "third"]
    file.write_text("\ntext,label\nfirst,a\n\nsecond,b\n\n")
    assert [row["text"] for row in read_table(file).rows] == ["first", "second"]
    file.write_text('text\n"one\n\ntwo"\nthree\n')
    assert [row["text"] for row in read_table(file).rows] == ["one\n\ntwo", "three"]


def test_numbers_and_bytes_read_as_they_are_meant() -> None:
    row = {"share": np.float32(0.1), "text": b"yes", "none": np.float32("nan"), "number": np.int64(3)}
    assert read_table([row]).rows == [{"share": 0.1, "text": "yes", "none": None, "number": 3}]


def test_answers_are_written_in_the_users_letters(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    rows = [{"label": "schön", "id": "ا"}, {"label": "half \ud800"}]
    write_jsonl(file, rows)
    assert "schön" in file.read_text()
    assert read_jsonl(file) == rows


def test_a_question_too_long_for_its_listed_labels(place: Place, tmp_path: Path, bara: Bara) -> None:
    rows = [{"text": row["question"], "label": NAMES[row["answer"]]} for row in questions()]
    given = Place(place.backbone, write_rows(tmp_path / "rows.jsonl", rows))
    found = bara(*given.arguments(tmp_path / "run", **{"task.max_length": 2, "task.labels": "letters"}))
    assert_one_sentence(found, "its 2 labels listed", "--labels texts", "max_length")


def test_who_is_to_blame_for_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_plugin.py").write_text("raise RuntimeError('no')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="mend it"):
        load_plugin("failing_plugin")
    with pytest.raises(ConfigError, match="that Python finds"):
        load_plugin("absent_plugin")


def test_a_split_is_encoded_once(place: Place) -> None:
    system = build_system(place.config())
    assert system.split("train") is system.split("train")
    with pytest.raises(DataError, match="no validation rows"):
        system.split("validation")

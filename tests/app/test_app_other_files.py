"""Files that are not what a run was trained on: rows that changed, columns and classes that are missing."""

import json
import struct
from pathlib import Path

import pandas as pd
import pytest
from app_cases import Bara, Place, assert_one_sentence, questions, write_rows

import bara_pyro as bp
from bara_pyro.cli import running
from bara_pyro.data import load_questions, task_from_rows
from bara_pyro.errors import BackboneError, CheckpointError, DataError
from bara_pyro.extras.hub.pretrained.gguf import convert_gguf
from bara_pyro.runs.config import for_rows
from bara_pyro.runs.rows import load_data
from bara_pyro.runs.stored import stored_config
from bara_pyro.untrusted.files import read_json


def test_a_changed_test_row_is_refused_and_scores_stay(place: Place, tmp_path: Path, bara: Bara) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", questions())
    out = tmp_path / "run"
    given = place.arguments(out, "lora")
    given[given.index("--task") + 1] = str(rows)
    assert bara(*given).code == 0
    before = (out / "metrics.json").read_bytes()
    tested = {json.loads(line)["id"] for line in (out / "predictions.jsonl").read_text().splitlines()}
    [first, *_] = [row for row in questions() if row["id"] in tested]
    other = {**first, "question": f"{first['question']} yes"}
    write_rows(rows, [other if row["id"] == first["id"] else row for row in questions()])
    for command in (
        ("evaluate", out),
        ("export", out, "--out", tmp_path / "x"),
        ("train", "--resume", "--out", out),
    ):
        assert_one_sentence(bara(*command), "The test rows of", "have changed since")
    assert (out / "metrics.json").read_bytes() == before
    write_rows(rows, questions())
    assert bara("evaluate", out).code == 0


@pytest.mark.parametrize(("seed", "hint"), [(None, True), (3, False)])
def test_classes_that_few_rows_leave_out_are_named(
    place: Place, tmp_path: Path, seed: int | None, hint: bool
) -> None:
    in_order = sorted(questions(), key=lambda row: row["answer"])
    rows = write_rows(tmp_path / "sorted.jsonl", in_order)
    few = load_data(place.config(task__name=str(rows), task__train_rows=1, task__train_rows_seed=seed))
    [note] = [note for note in few.notes if "no remaining training row" in note]
    left = {"no", "yes"} - {few.names[row.label] for row in few.train}
    assert f"has the answer {left.pop()}" in note
    assert ("--train-rows-seed" in note) is hint
    whole = load_data(place.config(task__name=str(rows), task__train_rows=30))
    assert not any("no remaining training row" in note for note in whole.notes)


def test_what_compare_advises_works(place: Place, tmp_path: Path, bara: Bara) -> None:
    for seed in (0, 1):
        for method in ("lora", "bara"):
            assert bara(*place.arguments(tmp_path / method / str(seed), method, seed=seed)).code == 0
    sides = (tmp_path / "lora", tmp_path / "bara")
    refused = bara("compare", *sides, "--samples", 5)
    assert_one_sentence(refused, "`bara evaluate RUN --samples 5` for each", "--on colours-test")
    for side in sides:
        for seed in "01":
            assert bara("evaluate", side / seed, "--samples", 5).code == 0
    assert bara("compare", *sides, "--samples", 5, "--on", "colours-test").code == 0


def test_rows_without_the_column_of_clusters_are_said_to_count_by_themselves(
    place: Place, tmp_path: Path, bara: Bara
) -> None:
    things = [row | {"thing": row["id"].split("-")[0]} for row in questions()]
    rows = write_rows(tmp_path / "things.jsonl", things)
    given = ("--method", "lora", "--model", place.backbone, "--task", rows, "--cluster-column", "thing")
    assert bara("train", *given, "--steps", 2, "--out", tmp_path / "run").code == 0
    plain = write_rows(tmp_path / "plain.jsonl", questions())
    said = bara("evaluate", tmp_path / "run", "--task", plain)
    assert said.code == 0, said.err
    assert "no column 'thing', the run's cluster column" in " ".join((said.out + said.err).split())
    own = bara("evaluate", tmp_path / "run", "--task", write_rows(tmp_path / "own.jsonl", things))
    assert "cluster column" not in own.out + own.err


def test_whole_numbers_are_the_same_classes_however_they_are_written(tmp_path: Path) -> None:
    """A column of whole numbers with one empty cell is written with a point by pandas."""
    stars = pd.DataFrame(
        {"text": [f"it is {n} {i}" for i in range(8) for n in (1, 2)], "stars": [1.0, 2.0] * 8}
    )
    stars.to_csv(tmp_path / "stars.csv", index=False)
    stars.to_parquet(tmp_path / "stars.parquet")
    texts = task_from_rows(tmp_path / "stars.csv", label_column="stars")
    assert texts.names == ("1.0", "2.0")
    found = load_questions(tmp_path / "stars.parquet", texts, answers=True)
    again = load_questions(tmp_path / "stars.csv", texts, answers=True)
    assert [row.label for row in found] == [row.label for row in again] == [0, 1] * 8
    with pytest.raises(DataError, match=r"its answer 3 is not one of the labels 1\.0, 2\.0"):
        load_questions([{"text": "it is", "stars": 3}], texts, answers=True)


def test_a_method_that_is_not_installed_is_no_choice(run: Path) -> None:
    stored = read_json(run / "bara_config.json")
    stored["config"]["method"] = {"name": "vera"}
    (run / "bara_config.json").write_text(json.dumps(stored))
    (run / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="'vera', which is not installed"):
        stored_config(run)


def test_answers_that_are_the_text_are_refused() -> None:
    rows = [{"stars": str(n % 2), "review": f"so {n}"} for n in range(20)]
    with pytest.raises(DataError, match="'stars' is read as the answer and as the text"):
        task_from_rows(rows, text_column="stars", label_column="stars")


def test_rows_that_changed_are_refused_however_they_are_asked_for(
    place: Place, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_rows(tmp_path / "mine.jsonl", questions())
    out = tmp_path / "run"
    config = Place(place.backbone, Path("mine.jsonl")).config(train__steps=2, predict__samples=[0])
    running.run(config, out)
    scores = read_json(out / "metrics.json")["metrics"]
    for spelling in ("mine.jsonl", "./mine.jsonl", str(file)):  # its own test rows, not all rows
        asked = ("evaluate", out, "--task", spelling, "--out", tmp_path / "again", "--overwrite")
        assert bara(*asked).code == 0
        assert read_json(tmp_path / "again" / "metrics.json")["metrics"] == scores
    system = bp.load_system(str(out))  # type: ignore[arg-type]
    assert system.config == for_rows(config, system.model.num_data)
    write_rows(file, [{"id": "new", "question": "is the fox blue ?", "answer": "no"}, *questions()])
    for arguments in (
        ("evaluate", out, "--task", "./mine.jsonl"),
        ("evaluate", out, "--limit", "5"),
        ("inspect", out),
        ("train", "--resume", "--out", out),
    ):
        assert_one_sentence(bara(*arguments), "has changed since the run was trained")
    with pytest.raises(DataError, match="has changed"):
        bp.load_system(out)
    copy = file.rename(tmp_path / "others.jsonl")
    assert bara("evaluate", out, "--task", copy, "--out", tmp_path / "others").code == 0
    assert_one_sentence(bara("evaluate", out), "mine.jsonl", "--task FILE")  # it is gone


def test_a_file_that_is_cut_in_its_header_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    for tail in (b"", struct.pack("<I", 3), struct.pack("<IQQ", 3, 1, 50), struct.pack("<IQQQ", 3, 1, 1, 9)):
        file.write_bytes(b"GGUF" + tail)
        with pytest.raises(BackboneError, match="cannot be read as GGUF"):
            convert_gguf(file, tmp_path / "out")

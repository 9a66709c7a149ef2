"""What a second look from outside found: files, labels and rows that were taken without a word."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from app_cases import Bara, Place, assert_one_sentence, questions, write_rows

import bara_pyro as bp
from bara_pyro.cli import running
from bara_pyro.errors import CheckpointError, ConfigError, DataError
from bara_pyro.extras.hub.upload import prepare_upload
from bara_pyro.runs.answers_file import answers_in
from bara_pyro.runs.manifest import check_run
from bara_pyro.untrusted.files import read_json, read_jsonl

NAMES = {"yes": "very likely", "no": "not at all"}


@pytest.fixture(scope="module")
def run(place: Place, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run on rows of one's own whose labels are several tokens, and their file."""
    folder = tmp_path_factory.mktemp("second")
    rows = [{"text": row["question"], "label": NAMES[row["answer"]]} for row in questions()]
    file = write_rows(folder / "mine.jsonl", rows)
    running.run(Place(place.backbone, file).config(train__steps=4, predict__samples=[0]), folder / "run")
    return folder / "run", file


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_predict_replaces_its_own_files_and_no_other(
    run: tuple[Path, Path], tmp_path: Path, bara: Bara, suffix: str
) -> None:
    folder, rows = run
    out = tmp_path / f"answers{suffix}"
    arguments = ("predict", folder, "--input", rows, "--output", out, "--samples", "0")
    assert bara(*arguments).code == 0
    assert answers_in(out)
    assert_one_sentence(bara(*arguments), "is there already", "--overwrite")
    assert bara(*arguments, "--overwrite").code == 0
    for foreign in ("hi\n", '{"id": 1}\n', "id,label\n1,2\n"):
        out.write_text(foreign)
        assert_one_sentence(bara(*arguments, "--overwrite"), f"{out} was not written by bara")
        assert out.read_text() == foreign


def test_rows_that_changed_since_training_are_refused(
    run: tuple[Path, Path], tmp_path: Path, bara: Bara
) -> None:
    folder, file = run
    before = file.read_text()
    arguments = ("evaluate", folder, "--samples", "0")
    assert bara(*arguments, "--out", tmp_path / "same").code == 0
    first = json.loads(before.splitlines()[0])
    try:
        file.write_text(json.dumps({**first, "text": "another row on top"}) + "\n" + before)
        changed = bara(*arguments, "--out", tmp_path / "changed")
        assert_one_sentence(changed, "has changed since the run was trained", "--task FILE")
        assert not (tmp_path / "changed").exists()
        copy = tmp_path / "others.jsonl"
        copy.write_text(file.read_text())
        assert bara(*arguments, "--task", copy, "--out", tmp_path / "others").code == 0
    finally:
        file.write_text(before)


def test_a_file_that_is_gone_is_named_with_the_way_out(
    run: tuple[Path, Path], tmp_path: Path, bara: Bara
) -> None:
    folder, file = run
    gone = file.rename(tmp_path / "elsewhere.jsonl")
    try:
        result = bara("evaluate", folder, "--samples", "0", "--out", tmp_path / "out")
        assert_one_sentence(result, "was trained on", "--task FILE")
    finally:
        gone.rename(file)


def test_a_folder_of_runs_names_one(run: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(run[0], tmp_path / "runs" / "one")
    with pytest.raises(CheckpointError, match=rf"holds some: give one of them, such as {tmp_path}/runs/one"):
        check_run(tmp_path / "runs")
    (tmp_path / "none").mkdir()
    with pytest.raises(
        CheckpointError,
        match=r"none, whose bara_config\.json is missing or was not written .* another folder\.$",
    ):
        check_run(tmp_path / "none")


def test_a_runs_own_files_speak_the_users_labels(run: tuple[Path, Path]) -> None:
    classes = read_json(run[0] / "metrics.json")["classes"]
    assert classes == ["not at all", "very likely"]
    rows = read_jsonl(run[0] / "predictions.jsonl")
    assert {row["answer"] for row in rows} <= set(classes)
    assert all(row["answer"] == classes[row["label"]] for row in rows)


@pytest.mark.parametrize("left", ["", "{", "[]", "\x00\x01"])
def test_a_manifest_that_is_no_manifest_is_damaged(run: tuple[Path, Path], tmp_path: Path, left: str) -> None:
    manifest = run[0] / "manifest.json"
    before = manifest.read_bytes()
    try:
        manifest.write_text(left)
        with pytest.raises(CheckpointError, match=r"manifest\.json is damaged: restore it"):
            check_run(run[0])
        manifest.unlink()
        with pytest.raises(CheckpointError, match="damage to other files would not be noticed"):
            check_run(run[0])
    finally:
        manifest.write_bytes(before)


def test_a_name_without_a_user_cannot_be_pushed(run: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'nouser' says no user"):
        prepare_upload(run[0], "nouser", tmp_path / "hub")


def lines(path: Path, label: object) -> Path:
    rows = [{"text": f"question {i}", "label": ["good", "bad"][i % 2]} for i in range(20)]
    rows[3]["label"] = label
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_nan_in_json_is_no_class_and_a_list_is_no_label(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 4"):
        bp.task_from_rows(lines(tmp_path / "nan.jsonl", float("nan")))
    with pytest.raises(DataError, match=r"list\.jsonl, row 4: the 'label' is \['good'\]: give one text"):
        bp.task_from_rows(lines(tmp_path / "list.jsonl", ["good"]))


def test_long_cells_and_old_line_ends_are_read(tmp_path: Path) -> None:
    rows = [(f"word {i} " * 20_000, ["good", "bad"][i % 2]) for i in range(10)]
    long = tmp_path / "long.csv"
    pd.DataFrame(rows, columns=["text", "label"]).to_csv(long, index=False)
    task = bp.task_from_rows(long)
    assert len(task.train) + len(task.test) == 10
    old = tmp_path / "old.csv"
    old.write_bytes(b"text,label\r" + b"".join(b"row %d,%s\r" % (i, b"ab"[i % 2 :][:1]) for i in range(10)))
    assert bp.task_from_rows(old).names == ("a", "b")


def test_texts_that_training_cuts_are_counted(place: Place, tmp_path: Path, bara: Bara) -> None:
    rows = [{**row, "text": f"{row['question']} " * 40} for row in questions()]
    file = write_rows(tmp_path / "long.jsonl", [{"text": r["text"], "label": r["answer"]} for r in rows])
    config = Place(place.backbone, file).config(train__steps=1, predict__samples=[0], task__max_length=20)
    from bara_pyro.runs.system import build_system

    assert any(
        "had their context or text cut to 20 tokens" in note for note in build_system(config).task.notes
    )


def test_the_error_of_all_errors_is_at_the_top() -> None:
    assert issubclass(DataError, bp.BaraError)

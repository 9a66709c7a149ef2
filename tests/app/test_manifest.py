"""Damage to a run is noticed: every file flipped, truncated, emptied, deleted, edited, or of another run."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from app_cases import Bara, Place, assert_one_sentence, files_below, questions, write_rows

from bara_pyro.atomic import write_json
from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.extras.replies.generation.file import append_lines
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.manifest import (
    CHECKPOINT,
    CONFIG,
    FITTED,
    MANIFEST,
    SCORED,
    SPLIT_HALF_FILE,
    TRAINED,
    check_run,
    read_manifest,
    record_files,
    verify_files,
    write_manifest,
)
from bara_pyro.runs.ownership import adding, clear, foreign, owned
from bara_pyro.runs.store import write_tensors
from bara_pyro.runs.stored import stored_config
from bara_pyro.untrusted.files import read_json

FILES = (
    *("bara_config.json", "adapter_config.json", "adapter_model.safetensors", "guide.safetensors"),
    *("train_log.jsonl", "metrics.json", "predictions.jsonl", MANIFEST),
)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
}


def test_the_manifest_lists_every_file_but_itself(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} == set(FILES)
    listed = read_manifest(finished)
    assert listed is not None
    assert listed.keys() == set(FILES) - {MANIFEST}
    check_run(finished)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_any_file_is_noticed(damage: str, run: Path) -> None:
    for name in FILES:
        if name == MANIFEST and damage in ("longer", "truncated"):
            continue  # white space after the value of a JSON file is no damage
        content = (run / name).read_bytes()
        DAMAGE[damage](run / name)
        with pytest.raises(CheckpointError, match=name.split(".", maxsplit=1)[0]):
            load_system(run)
        (run / name).write_bytes(content)
    check_run(run)


@pytest.mark.parametrize("name", ["bara_config.json", "guide.safetensors", "predictions.jsonl", MANIFEST])
def test_every_command_notices_damage(name: str, run: Path, tmp_path: Path, bara: Bara) -> None:
    flip(run / name)
    rows = write_rows(tmp_path / "rows.jsonl", questions()[:2])
    for command in (
        ("evaluate", run),
        ("predict", run, "--input", rows, "--output", tmp_path / "answers.jsonl"),
        ("inspect", run),
    ):
        assert_one_sentence(bara(*command), str(run / name))
    if name != "predictions.jsonl":  # which resuming writes anew
        assert_one_sentence(bara("train", "--resume", "--out", run), name)


def test_a_file_of_another_run(place: Place, run: Path, tmp_path: Path, bara: Bara) -> None:
    assert bara(*place.arguments(tmp_path / "other", seed=1)).code == 0
    for name in ("adapter_model.safetensors", "guide.safetensors"):
        shutil.copy(tmp_path / "other" / name, run / name)
    assert_one_sentence(bara("evaluate", run), "adapter_model.safetensors", "another run")


def test_scores_that_are_damaged_are_written_anew_by_resuming(run: Path, bara: Bara) -> None:
    flip(run / "predictions.jsonl")
    refused = bara("evaluate", run)
    assert_one_sentence(refused, f"bara train --resume --out {run}")
    assert bara("train", "--resume", "--out", run).code == 0
    assert bara("evaluate", run).code == 0


def test_a_run_of_a_later_version(run: Path) -> None:
    write_json(run / CONFIG, {**read_json(run / CONFIG), "schema": 99})
    record_files(run, CONFIG)
    with pytest.raises(CheckpointError, match="schema 99"):
        load_system(run)


def test_a_setting_edited_before_training_is_over(run: Path) -> None:
    (run / MANIFEST).unlink()
    stored = read_json(run / "bara_config.json")
    stored["config"]["adapter"]["lora_alpha"] = 32.0
    write_json(run / "bara_config.json", stored)
    with pytest.raises(CheckpointError, match="was edited"):
        stored_config(run)


def test_commands_that_add_files_keep_the_manifest_valid(run: Path, bara: Bara) -> None:
    for command in (["evaluate", run], ["evaluate", run, "--overwrite", "--samples", 1]):
        assert bara(*command).code == 0
        check_run(run)
        verify_files(run / "evaluation" / "colours-test")
    assert foreign(run) is None
    assert_one_sentence(bara("evaluate", run), "already holds results", "--overwrite")


def test_a_writer_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    def stopped(folder: Path) -> None:
        with adding(folder) as place:
            (place / "figure.png").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped(tmp_path / "page")
    assert list(tmp_path.iterdir()) == []
    with adding(tmp_path) as place:
        (place / "figure.png").write_text("whole")
    before = files_below(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        stopped(tmp_path)
    assert files_below(tmp_path) == before
    assert foreign(tmp_path) is None


def test_what_somebody_else_wrote_is_neither_replaced_nor_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def add(content: str) -> None:
        with adding(tmp_path) as place:
            (place / "a").write_text(content)

    (tmp_path / "a").write_text("mine")
    with pytest.raises(ConfigError, match="a was not written by bara"):
        add("ours")
    (tmp_path / "a").unlink()
    add("ours")
    add("ours again")
    verify_files(tmp_path)
    (tmp_path / "a").write_text("edited")
    with pytest.raises(ConfigError, match="a was not written by bara, or was changed"):
        add("ours")
    (tmp_path / "b").write_text("mine")
    (tmp_path / "empty").mkdir()
    clear(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "empty"}
    assert f"a was left in {tmp_path}" in caplog.text


@pytest.mark.parametrize(
    ("content", "ours"),
    [
        ("", True),
        ('{"id": "HumanEval/0", "number": 0, "rep', True),
        ('{"id": "a", "number": 0, "reply": "", "log_prob": -1.0, "made": "x"}\n{"id"', True),
        ('{"id": "a"}\n', False),
        ('{"id": "a"}', False),
        ("mine", False),
    ],
)
def test_programs_that_are_being_written_are_known_by_their_first_line(
    content: str, ours: bool, tmp_path: Path
) -> None:
    (tmp_path / "programs.jsonl").write_text(content)
    assert (foreign(tmp_path) is None) == ours
    clear(tmp_path)
    assert (tmp_path / "programs.jsonl").exists() == (not ours)


@pytest.mark.parametrize("name", [*TRAINED, CHECKPOINT, *SCORED])
def test_a_run_without_a_manifest_owns_what_says_that_it_is_of_the_run(name: str, run: Path) -> None:
    """Such as one that was killed: its weights, and no others that are called alike."""
    identity = {"configuration": read_json(run / CONFIG)["config_hash"]}
    write_tensors(run / CHECKPOINT, {"x": torch.zeros(1)}, {"identity": identity})
    write_json(run / FITTED, {"temperature": 1.5})
    rows = [{"id": "a", "label": 0, "log_probs": [[-1.0]]}]
    write_json(run / SPLIT_HALF_FILE, {"steps": 1, "seconds": 1.0, "rows": rows})
    for file in (MANIFEST, *SCORED):
        (run / file).unlink()
    assert foreign(run) is None
    if name.endswith(".safetensors"):
        write_tensors(run / name, {"x": torch.zeros(1)}, {"config_hash": "0" * 12})
    else:
        (run / name).write_text('{"mine": "mine"}\n')
    kept = (run / name).read_bytes()
    assert foreign(run) is not None
    clear(run)
    assert (run / name).read_bytes() == kept


def test_lines_of_a_file_that_is_removed_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "replies.jsonl"

    def lines() -> Iterator[dict[str, int]]:
        yield {"id": 0}
        yield {"id": 1}
        file.unlink()
        yield {"id": 2}

    with pytest.raises(CheckpointError, match="removed or replaced"):
        append_lines(file, [], lines())


@pytest.mark.parametrize("name", ["../a", "/a", "a/b", "..", ".", "", "a\\b", "C:a", "a\0"])
def test_a_manifest_that_names_what_is_not_in_its_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    write_manifest(folder, {name: hashlib.sha256(b"mine").hexdigest()})
    with pytest.raises(CheckpointError, match="outside its folder"):
        read_manifest(folder)
    assert owned(folder) == set()
    clear(folder)
    assert (tmp_path / "a").read_text() == "mine"


def test_a_manifest_that_was_edited(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("whole")
    record_files(tmp_path, "a")
    stored = read_json(tmp_path / MANIFEST)
    for edited in (json.dumps({**stored, "files": {}}), "[]", "\x00\x01"):
        (tmp_path / MANIFEST).write_text(edited)
        with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
            verify_files(tmp_path)


def test_a_folder_of_runs_names_one(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "runs" / "one")
    with pytest.raises(CheckpointError, match=rf"holds runs: give one of them, such as {tmp_path}/runs/one"):
        check_run(tmp_path / "runs")
    (tmp_path / "none").mkdir()
    with pytest.raises(CheckpointError, match=r"none \(bara_config\.json is missing"):
        check_run(tmp_path / "none")

"""What a first user found: runs below a folder that is overwritten, scores of rows that were trained on."""

import shutil
import struct
from pathlib import Path

import pytest
from app_cases import Bara, Place, assert_one_sentence, questions, write_rows

import bara_pyro as bp
from bara_pyro.cli import running
from bara_pyro.errors import BackboneError, ConfigError, DataError
from bara_pyro.extras.hub.pretrained.gguf import convert_gguf
from bara_pyro.registry import load_plugin
from bara_pyro.runs.by_rows import for_rows
from bara_pyro.runs.manifest import CONFIG, check_run
from bara_pyro.runs.ownership import clear
from bara_pyro.untrusted.files import read_json


@pytest.fixture
def runs(run: Path, tmp_path: Path) -> Path:
    """A folder of two runs, one in the other's neighbourhood."""
    folder = tmp_path / "runs"
    for name in ("a", "b"):
        shutil.copytree(run, folder / name)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "train --steps 2",
        "export {a} --rows 8",
        "prune {a} --rows 8",
        "push {a} somebody/model --offline",
        "evaluate {a} --samples 0",
        "demo --quick --steps 2",
    ],
)
def test_a_folder_that_holds_runs_is_not_cleared(runs: Path, place: Place, bara: Bara, command: str) -> None:
    given = [word.format(a=runs / "a") for word in command.split()]
    if given[0] in ("train", "demo"):
        given += ["--model", str(place.backbone), "--task", str(place.rows)]
    assert_one_sentence(bara(*given, "--out", runs, "--overwrite"), str(runs), "holds")
    for name in ("a", "b"):
        check_run(runs / name)


def test_clearing_leaves_runs_below_alone(runs: Path) -> None:
    shutil.copytree(runs / "a", runs / "a" / "inner" / "b")
    clear(runs / "a")
    check_run(runs / "a" / "inner" / "b")
    assert not (runs / "a" / CONFIG).exists()


def test_scores_are_not_put_into_another_run(runs: Path, bara: Bara) -> None:
    found = bara("evaluate", runs / "a", "--samples", "0", "--out", runs / "b", "--overwrite")
    assert_one_sentence(found, f"{runs / 'b'} is a run")
    check_run(runs / "b")


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
        found = bara(
            "evaluate", out, "--task", spelling, "--out", tmp_path / "again", "--overwrite", "--json"
        )
        assert found.code == 0
        assert read_json(tmp_path / "again" / "metrics.json")["metrics"] == scores
    system = bp.load_system(str(out))  # type: ignore[arg-type]
    assert system.config == for_rows(config, system.model.num_data)
    write_rows(file, [{"id": "new", "question": "is the fox blue ?", "answer": "no"}, *questions()])
    for arguments in (
        ("evaluate", out, "--task", "./mine.jsonl"),
        ("evaluate", out, "--limit", "5"),
        ("inspect", out),
        ("prune", out, "--out", tmp_path / "small", "--rows", "8"),
        ("train", "--resume", "--out", out),
    ):
        assert_one_sentence(bara(*arguments), "has changed since the run was trained")
    with pytest.raises(DataError, match="has changed"):
        bp.load_system(out)


def test_a_file_that_is_cut_in_its_header_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    for tail in (b"", struct.pack("<I", 3), struct.pack("<IQQ", 3, 1, 50), struct.pack("<IQQQ", 3, 1, 1, 9)):
        file.write_bytes(b"GGUF" + tail)
        with pytest.raises(BackboneError, match="cannot be read as GGUF"):
            convert_gguf(file, tmp_path / "out")


@pytest.mark.parametrize("text", ["raise RuntimeError('no')", "import sys; sys.exit(3)", "def ("])
def test_a_plug_in_that_fails_is_to_blame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "broken_plugin.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="plug-in 'broken_plugin' cannot be imported"):
        load_plugin("broken_plugin")


def test_names_of_rows_are_no_markup(place: Place, tmp_path: Path, bara: Bara) -> None:
    rows = [{**row, "id": f"[/r{n}]"} for n, row in enumerate(questions())]
    found = bara("tasks", write_rows(tmp_path / "rows.jsonl", rows))
    assert found.code == 0
    assert "[/r0]" in found.out

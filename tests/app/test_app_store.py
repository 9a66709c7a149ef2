"""Files: whole or as they were, safetensors and JSON, what is wrong with a foreign one."""

import errno
import json
import multiprocessing
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from safetensors.torch import save_file

from bara_pyro.atomic import atomic_write, remove_parts, write_json, write_jsonl, write_text
from bara_pyro.errors import CheckpointError
from bara_pyro.runs.store import load_parameters, read_tensors, write_tensors
from bara_pyro.untrusted.files import read_json, read_jsonl

WRITERS: dict[str, Callable[[Path], None]] = {
    "text": lambda path: write_text(path, "new"),
    "json": lambda path: write_json(path, {"a": 1}),
    "jsonl": lambda path: write_jsonl(path, [{"a": 1}]),
    "tensors": lambda path: write_tensors(path, {"a": torch.ones(3)}, {"step": 1}),
}


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    writer: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, call, no_space)
    with pytest.raises(CheckpointError, match=r"Cannot write .*file \(No space left on device\): free space"):
        WRITERS[writer](path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_written_file_replaces_the_old_one_and_can_be_read_by_others(writer: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    before = os.umask(0o022)
    try:
        WRITERS[writer](path)
        first = path.read_bytes()
        WRITERS[writer](path)
    finally:
        os.umask(before)
    assert path.read_bytes() == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".thesis.docx.7.part").write_text("mine")
    killed = multiprocessing.get_context("fork").Process(target=write_json_and_die, args=(tmp_path,))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2  # the thesis, and what was killed
    write_json(tmp_path / "metrics.json", {})
    left = {".thesis.docx.7.part", "metrics.json"}
    assert {path.name for path in tmp_path.iterdir()} == left
    remove_parts(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == left


def write_json_and_die(folder: Path) -> None:
    atomic_write(folder / "metrics.json", lambda _: os.kill(os.getpid(), signal.SIGKILL))


def test_what_a_running_writer_has_is_left_alone(tmp_path: Path) -> None:
    def write(file: BinaryIO) -> None:
        remove_parts(tmp_path)
        write_json(tmp_path / "metrics.json", {"by": "another"})
        file.write(b"whole")

    atomic_write(tmp_path / "metrics.json", write)
    assert (tmp_path / "metrics.json").read_bytes() == b"whole"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_name_as_long_as_the_system_takes(tmp_path: Path) -> None:
    path = tmp_path / f"{'n' * 250}.json"
    write_json(path, {})
    assert list(tmp_path.iterdir()) == [path]


def test_tensors_and_metadata_come_back_exactly(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 4),
        "b": torch.randn(4, 6)[:, ::2].T,
        "c": torch.arange(5, dtype=torch.uint8),
        "d": torch.zeros(2, 0),
        "e": torch.randn(2).bfloat16(),
    }
    metadata = {"step": 3, "groups": [{"lr": 0.1 + 0.2}], "none": None}
    write_tensors(tmp_path / "file", tensors, metadata)
    found, data = read_tensors(tmp_path / "file")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[k], v) and found[k].dtype == v.dtype for k, v in tensors.items())
    assert data == {"schema": 2, **metadata}


def test_json_knows_no_infinity(tmp_path: Path) -> None:
    write_json(tmp_path / "file", {"a": [float("inf"), (float("nan"), 1.5)]})
    assert json.loads((tmp_path / "file").read_text()) == {"a": [None, [None, 1.5]]}


def test_half_a_line_at_the_end_of_a_log_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert read_jsonl(path) == []
    path.write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]
    path.write_text('{"step": 1}\n{"ste\n')
    with pytest.raises(CheckpointError, match=r"Cannot read .*log\.jsonl"):
        read_jsonl(path)


def foreign_files(folder: Path) -> dict[str, Path]:
    write_tensors(folder / "whole", {"a": torch.ones(100)}, {})
    (folder / "cut").write_bytes((folder / "whole").read_bytes()[:-20])
    (folder / "empty").write_bytes(b"")
    (folder / "text").write_text("not tensors" * 100)
    save_file({"a": torch.ones(1)}, folder / "foreign")
    save_file({"a": torch.ones(1)}, folder / "peft", {"format": "pt"})
    save_file({"a": torch.ones(1)}, folder / "later", {"bara_pyro": '{"schema": 3}'})
    return {name: folder / name for name in ("cut", "empty", "text", "foreign", "peft", "later", "absent")}


@pytest.mark.parametrize("kind", ["cut", "empty", "text", "foreign", "peft", "later", "absent"])
def test_a_file_that_is_not_ours_or_not_whole(kind: str, tmp_path: Path) -> None:
    path = foreign_files(tmp_path)[kind]
    with pytest.raises(CheckpointError) as caught:
        read_tensors(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "\xff"])
def test_json_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match="Cannot read"):
        read_json(tmp_path / "file")
    with pytest.raises(CheckpointError, match="absent"):
        read_json(tmp_path / "absent")


def test_parameters_must_match_in_name_and_shape() -> None:
    layer = torch.nn.Linear(2, 3)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    right = {"weight": torch.ones(3, 2), "bias": torch.ones(3)}
    wrong = {
        "lacks 'bias'": {"weight": torch.ones(3, 2)},
        "unknown 'extra'": {**right, "extra": torch.ones(1)},
        r"'bias' has shape \(4,\)": {**right, "bias": torch.ones(4)},
    }
    for message, tensors in wrong.items():
        with pytest.raises(CheckpointError, match=message):
            load_parameters(dict(layer.named_parameters()), tensors, Path("file"))
        assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    load_parameters(dict(layer.named_parameters()), right, Path("file"))
    assert torch.equal(layer.bias, torch.ones(3))


def test_answers_are_written_in_the_users_letters(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    rows = [{"label": "schön", "id": "ا"}, {"label": "half \ud800"}]
    write_jsonl(file, rows)
    assert "schön" in file.read_text()
    assert read_jsonl(file) == rows

"""Which code made a result: recorded, compared and named."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bara_pyro.atomic import write_json
from experiments.engine.provenance import BEFORE, Code, code_state, in_words, same_code
from experiments.engine.sweep import Run, sweep


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=e@x")
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def test_the_state_of_a_repository(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.py").write_text("a = 1\n")
    (tmp_path / "constraints.txt").write_text("torch==2.0\n")
    outside = code_state.__wrapped__(tmp_path)
    assert (outside["commit"], outside["dirty"]) == (None, None)
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    clean = code_state.__wrapped__(tmp_path)
    assert clean["dirty"] is False
    assert len(clean["commit"]) == 40
    assert same_code(outside, clean)
    (tmp_path / "notes.md").write_text("no code\n")
    assert code_state.__wrapped__(tmp_path) == clean
    (tmp_path / "models" / "a.py").write_text("a = 2\n")
    changed = code_state.__wrapped__(tmp_path)
    assert changed["dirty"] is True
    assert not same_code(clean, changed)
    (tmp_path / "constraints.txt").write_text("torch==2.1\n")
    assert not same_code(changed, code_state.__wrapped__(tmp_path))


def test_in_words() -> None:
    code: Code = {"commit": "abcdef0123456789", "dirty": True, "tree": "1", "lock": None}
    assert in_words(code) == "commit abcdef012345 with changes"
    assert in_words({**code, "dirty": False}) == "commit abcdef012345"
    assert in_words(None) == BEFORE


def test_runs_of_other_code_are_kept_and_named(
    job: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    (first,) = sweep([job()], launcher="serial").values()
    assert first["code"] == code_state()
    assert [*sweep([job()], launcher="serial").values()] == [first]
    assert "other code" not in capsys.readouterr().out
    del first["code"]  # as records were before
    write_json(job().path, first)
    assert [*sweep([job()], launcher="serial").values()] == [first]
    assert f"1 of 1 finished runs are of other code ({BEFORE})" in capsys.readouterr().out

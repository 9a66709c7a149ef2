"""What is refused in Python is told in Python's words: beside an option stands the argument's name."""

import re
from pathlib import Path
from typing import Any

import pytest

import bara_pyro as bp


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    (tmp_path / "file").write_text("")
    (tmp_path / "odd.csv").write_text("this,that\na,b\n")
    (tmp_path / "replies.csv").write_text("prompt,completion\na,b\n")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"out": "run"}, "resume=True"),
        ({"out": "file"}, "a folder as out"),
        ({"out": "new", "task": "micro-chat"}, "likelihood='completion'"),
        ({"out": "new", "likelihood": "completion"}, "leave likelihood='completion'"),
        ({"out": "new", "task": "odd.csv"}, "text_column"),
        ({"out": "new", "task": "odd.csv", "label_column": "stars"}, "label_column"),
        ({"out": "new", "task": "replies.csv"}, "or learn replies with likelihood='completion'"),
    ],
)
def test_an_option_is_told_beside_its_argument(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], told: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(bp.BaraError) as error:
        bp.train(**given)
    sentence = str(error.value)
    assert told in sentence
    options = re.findall(r"--([a-z-]+)", sentence)
    assert all(re.search(rf"\b{option.replace('-', '_')}\b.* \(--{option}", sentence) for option in options)
    assert not (folder / "new").exists()

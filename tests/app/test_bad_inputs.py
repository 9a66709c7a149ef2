"""What people get wrong, over all commands: exit code 2, one sentence, and the disk as it was."""

import shutil
from pathlib import Path

import pytest
from app_cases import Bara, Place, assert_one_sentence, questions, save_backbone, write_rows
from bad_cases import CASES, DEEP, EMPTY, FILES, SETTINGS, TRAIN, UNREADABLE, WORDS
from command_cases import COMMANDS

from bara_pyro.cli.app import UsageError
from bara_pyro.data import Task, load_questions, load_task
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.runs.config import load_config


def write_bad_files(folder: Path) -> None:
    rows = questions()

    def without(key: str) -> list[dict]:
        return [{k: v for k, v in row.items() if k != key or i != 2} for i, row in enumerate(rows)]

    offered = {"id": "x", "question": "?", "choices": ["a", "b"], "answer": 0}
    write_rows(folder / "no-answer.jsonl", without("answer"))
    write_rows(folder / "no-question.jsonl", without("question"))
    write_rows(folder / "same-id.jsonl", [{**row, "id": "one"} for row in rows])
    write_rows(folder / "one-label.jsonl", [row for row in rows if row["answer"] == "yes"])
    write_rows(folder / "some-choices.jsonl", [*rows, offered])
    half = [{**row, "question": "half \ud800 ?"} if i == 2 else row for i, row in enumerate(rows)]
    write_rows(folder / "half.jsonl", half)
    odd = [{**row, "answer": "perhaps not"} if i == 2 else row for i, row in enumerate(rows)]
    write_rows(folder / "three-labels.jsonl", odd)
    write_rows(folder / "maybe.jsonl", [{"question": "is the fox red ?", "answer": "maybe"}])
    write_rows(folder / "classes.jsonl", [{**row, "answer": row["answer"] + "!"} for row in rows])
    write_rows(folder / "renamed.jsonl", [{"text": row["question"], "label": row["answer"]} for row in rows])
    write_rows(folder / "there.jsonl", rows)
    texts = {
        "empty.jsonl": "",
        "broken.jsonl": '{"question": "is the fox red ?", "answer": "yes"}\n{"question\n',
        "deep.jsonl": '{"question": ' + "[" * DEEP + "]" * DEEP + "}\n",
        "deep.json": "[" * DEEP + "]" * DEEP,
        "numbers.jsonl": "1\n2\n",
        "object.json": '{"question": "?"}',
        "empty-list.json": "[]",
        "no-header.csv": "is the fox red ?\nis the hen red ?\n",
        "empty.csv": "",
        "only-spaces.csv": "  \n \n",
        "rows.txt": "is the fox red ? yes\n",
        "rows.parquet": "no parquet",
        "list.yaml": "- 1\n",
        "broken.yaml": "train: [\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "binary.jsonl").write_bytes(bytes(range(256)) * 8)
    (folder / "latin.jsonl").write_bytes('{"question": "Käse?", "answer": "ja"}\n'.encode("latin-1"))


@pytest.fixture(scope="module")
def world(place: Place, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Good and bad files, runs and folders, by the names that the table uses."""
    root = tmp_path_factory.mktemp("bad")
    write_bad_files(root)
    (root / "empty").mkdir()
    for name in ("run", "spoilt", "stopped", "reported"):
        shutil.copytree(finished, root / name)
    for name in ("file", "foreign/notes.txt", "finished-demo/index.html", "reported/report/index.html"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("mine")
    with (root / "spoilt" / "guide.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    for name in ("manifest.json", "guide.safetensors"):
        (root / "stopped" / name).unlink()
    save_backbone(root / "other", seed=1)
    found = {path.name: path for path in root.iterdir()}
    absent = {name: root / name for name in ("absent", "new")}
    return {**found, **absent, "root": root, "rows": place.rows, "backbone": place.backbone}


def snapshot(*folders: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            status = path.stat()
            found[str(path)] = (status.st_size, status.st_mtime_ns if path.is_file() else 0)
    return found


def in_place_of_own(arguments: list[str]) -> list[str]:
    """Return a case of training whose options take the place of those that all such cases have."""
    train, *own = TRAIN.split()
    if arguments[: len(own) + 1] != [train, *own]:
        return arguments
    rest = arguments[len(own) + 1 :]
    typed = {word.partition("=")[0] for word in rest}
    kept = [word for i in range(0, len(own), 2) if own[i] not in typed for word in own[i : i + 2]]
    return [train, *kept, *rest]


def assert_one_message(error: Exception) -> None:
    message = str(error)
    assert message.endswith(".")
    assert "\n" not in message
    assert ". " not in message[:-1], message


@pytest.mark.parametrize("key", SETTINGS)
def test_a_setting_refuses_values(key: str) -> None:
    for value in SETTINGS[key]:
        with pytest.raises(ConfigError) as refused:
            load_config(assignments=[f"{key}={value}"])
        assert_one_message(refused.value)
        assert key.rpartition(".")[2] in str(refused.value) or value in str(refused.value)


@pytest.mark.parametrize("words", WORDS)
def test_a_parser_refuses_words(words: str) -> None:
    name = max((name for name in COMMANDS if f"{words} ".startswith(f"{name} ")), key=len)
    with pytest.raises(UsageError):
        COMMANDS[name].make_context(name, words.removeprefix(name).split())


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_rows_is_refused(name: str, world: dict[str, Path]) -> None:
    """Named, with the row or line where there is one: by who trains, and by who asks a trained run."""
    task = Task("colours", ("no", "yes"))
    for read in (load_task, *([lambda path: load_questions(path, task)] if name in UNREADABLE else [])):
        with pytest.raises(DataError) as refused:
            read(str(world[name]))
        assert_one_message(refused.value)
        assert name.partition(".")[0] in str(refused.value)


@pytest.mark.parametrize(
    "arguments", [*map(str.split, CASES), *EMPTY], ids=lambda arguments: " ".join(arguments)[-80:]
)
def test_refused(
    arguments: list[str], world: dict[str, Path], bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world["empty"])
    folders = (world["root"], world["rows"].parent)
    before = snapshot(*folders)
    said = next((parts for case, parts in CASES.items() if case.split() == arguments), [])
    arguments = in_place_of_own(arguments)
    for name, path in world.items():
        arguments = [argument.replace(f"{{{name}}}", str(path)) for argument in arguments]
    result = bara(*arguments)
    changed = snapshot(*folders).items() ^ before.items()
    shutil.rmtree(world["new"], ignore_errors=True)
    assert result.code == 2, result.out + result.err
    assert_one_sentence(result, *said)
    assert not changed

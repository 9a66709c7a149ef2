"""`--overwrite` replaces what bara wrote and nothing else, whatever a manifest that somebody sent claims."""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from app_cases import Bara, Place, assert_one_sentence, files_below, questions, write_rows

from bara_pyro.cli.app import app
from bara_pyro.errors import DataError
from bara_pyro.runs.answers import answers_in, comparison_page_in, holds_replies, judged_in, reply_page_in
from bara_pyro.runs.manifest import CONFIG, check_run, read_manifest, write_manifest
from bara_pyro.runs.ownership import adding, clear

# What is given to each command that has --overwrite, with a folder or a file as its {target}.
FOLDERS = {
    "train": "--model {model} --task {rows} --out {target}",
    "evaluate": "{run} --out {target}",
    "inspect": "{run} --rows 8 --out {target}",
    "export": "{run} --out {target}",
    "push": "{run} somebody/model --offline --out {target}",
    "humaneval": "{run} --problems {rows} --out {target}",
    "demo": "--quick --model {model} --task {rows} --out {target}",
    "microworld build": "--steps 1 --out {target}",
}
FILES = {
    "predict": ("{run} --input {rows} --output {target}", ".jsonl"),
    "conformal": ("{run} --output {target}", ".jsonl"),
    "abstain": ("{run} --risk 0.5 --output {target}", ".csv"),
    "detect": ("{run} --output {target}", ".tsv"),
    "acquire": ("{run} --input {rows} --count 2 --output {target}", ".parquet"),
    "generate": ("{run} --prompt fox --output {target}", ".jsonl"),
    "generate --page": ("{run} --prompt fox --uncertainty 2 --page {target}", ".html"),
    "compare": ("{run} {run} --page {target}", ".html"),
    "lm-eval": ("{run} --tasks boolq --out {target}", ".json"),
    "reward score": ("{model} --input {rows} --output {target}", ".jsonl"),
}


def words(given: str, **places: object) -> list[str]:
    """Return the words of a command with paths in them, which may hold spaces."""
    return [word.format(**places) for word in given.split()]


def overwriting(group: object, name: str = "") -> Iterator[str]:
    """Every command below a group that has --overwrite."""
    for word, command in getattr(group, "commands", {}).items():
        yield from overwriting(command, f"{name} {word}")
    if any("--overwrite" in option.opts for option in group.params):  # type: ignore[attr-defined]
        yield name.strip()


def test_every_command_is_tried_here() -> None:
    tried = {name.partition(" --")[0] for name in (*FOLDERS, *FILES)}
    assert tried == set(overwriting(typer.main.get_command(app)))


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def outside(target: Path) -> None:
    victim = target.parent / "victim.txt"
    victim.write_text("mine")
    names = (str(victim), "../victim.txt", "below/thesis.docx")
    write_manifest(target, dict.fromkeys(names, sha(b"mine")))


def star(target: Path) -> None:
    (target / "thesis.docx").write_text("mine")
    write_manifest(target, {"*": None})


def not_known(target: Path) -> None:
    for name in ("thesis.docx", "index.html", "README.md", "metrics.json", "export.json"):
        (target / name).write_text("mine")
    write_manifest(target, dict.fromkeys(("thesis.docx", "index.html", "README.md", "metrics.json"), None))


def another_content(target: Path) -> None:
    (target / "thesis.docx").write_text("mine")
    write_manifest(target, {"thesis.docx": sha(b"theirs")})


def link(target: Path) -> None:
    (target.parent / "victim.txt").write_text("mine")
    for name in ("metrics.json", "programs.jsonl"):
        (target / name).symlink_to(target.parent / "victim.txt")
    write_manifest(target, dict.fromkeys(("metrics.json", "programs.jsonl"), sha(b"mine")))


def linked_folder(target: Path) -> None:
    victim = target.parent / "elsewhere"
    victim.mkdir()
    (victim / "thesis.docx").write_text("mine")
    write_manifest(victim, {"thesis.docx": sha(b"mine")})
    (target / "report").symlink_to(victim)
    write_manifest(target, {})


def below(target: Path) -> None:
    (target / "notes").mkdir()
    star(target / "notes")


HOSTILE: tuple[Callable[[Path], None], ...] = (
    *(outside, star, not_known, another_content, link, linked_folder, below),
)
# What those leave in folders that is nobody's but the user's.
THEIRS = ("thesis.docx", "victim.txt", "notes.txt", "index.html", "README.md")


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("in_a_run", [False, True], ids=["folder", "run"])
def test_a_manifest_makes_nothing_ours(
    hostile: Callable[[Path], None], in_a_run: bool, place: Place, run: Path, tmp_path: Path, bara: Bara
) -> None:
    target = tmp_path / "there" / "target"
    if in_a_run:
        shutil.copytree(run, target)
        (target / "manifest.json").unlink()
        (target / "metrics.json").unlink()
    else:
        target.mkdir(parents=True)
    (target / "empty").mkdir()
    hostile(target)
    before = files_below(tmp_path)
    given = words(FOLDERS["train"], run=run, rows=place.rows, model=place.backbone, target=target)
    assert_one_sentence(bara("train", *given, "--overwrite"), str(target))
    assert files_below(tmp_path) == before
    clear(target)
    kept = files_below(tmp_path)
    theirs = {name for name in before if Path(name).name in THEIRS}
    assert theirs
    assert {name: kept.get(name) for name in theirs} == {name: before[name] for name in theirs}


@pytest.mark.parametrize("command", FOLDERS)
def test_no_folder_of_somebody_else_is_replaced(
    command: str, place: Place, run: Path, tmp_path: Path, bara: Bara
) -> None:
    for hostile in (not_known, link):
        target = tmp_path / hostile.__name__ / "target"
        target.mkdir(parents=True)
        hostile(target)
        before = files_below(tmp_path)
        given = words(FOLDERS[command], run=run, rows=place.rows, model=place.backbone, target=target)
        assert_one_sentence(bara(*command.split(), *given, "--overwrite"), str(target))
        assert files_below(tmp_path) == before, hostile.__name__


@pytest.mark.parametrize("command", ["inspect", "export"])
def test_nothing_of_an_earlier_result_is_left(command: str, run: Path, tmp_path: Path, bara: Bara) -> None:
    """As a report with --deep leaves draws that a quick one over it does not have."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "posterior.nc").write_text("earlier")
    write_manifest(target, {"posterior.nc": sha(b"earlier")})
    found = bara(command, *words(FOLDERS[command], run=run, target=target), "--overwrite")
    assert found.code == 0, found.err
    assert "posterior.nc" not in files_below(target)


def test_a_result_that_fails_leaves_the_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "posterior.nc").write_text("earlier")
    write_manifest(tmp_path, {"posterior.nc": sha(b"earlier")})
    before = files_below(tmp_path)

    def fail() -> None:
        with adding(tmp_path, replacing=True) as place:
            (place / "index.html").write_text("half")
            raise DataError("The split has no rows.")

    with pytest.raises(DataError):
        fail()
    assert files_below(tmp_path) == before
    with adding(tmp_path, replacing=True) as place:
        (place / "index.html").write_text("new")
    assert read_manifest(tmp_path) == {"index.html": sha(b"new")}
    assert {path.name for path in tmp_path.iterdir()} == {"index.html", "manifest.json"}


CONTENTS = (
    "mine",
    '{"mine": 1}\n',
    '{"id": 1}\n',
    '{"id": "a", "mine": 1}',
    '{"mine": "a',
    "id,label\n1,2\n",
)


@pytest.mark.parametrize("command", FILES)
def test_no_file_of_somebody_else_is_replaced(
    command: str, place: Place, run: Path, tmp_path: Path, bara: Bara
) -> None:
    given, ending = FILES[command]
    target = tmp_path / f"mine{ending}"
    rows = write_rows(tmp_path / "rows.jsonl", questions()[:4])
    for content in CONTENTS[1:3]:
        target.write_text(content)
        before = files_below(tmp_path)
        typed = words(given, run=run, rows=rows, model=place.backbone, new=tmp_path / "new", target=target)
        found = bara(*command.partition(" --")[0].split(), *typed, "--overwrite")
        assert_one_sentence(found, f"{target} was not written by bara")
        assert files_below(tmp_path) == before


@pytest.mark.parametrize("content", CONTENTS)
def test_what_others_wrote_is_not_taken_for_ours(content: str, tmp_path: Path) -> None:
    readers = (answers_in, holds_replies, judged_in, reply_page_in, comparison_page_in)
    for suffix in (".jsonl", ".csv", ".tsv", ".parquet"):
        (tmp_path / f"mine{suffix}").write_text(content)
        assert not [ours for ours in readers if ours(tmp_path / f"mine{suffix}")], suffix


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_predict_replaces_its_own_files(
    suffix: str, place: Place, run: Path, tmp_path: Path, bara: Bara
) -> None:
    out = tmp_path / f"answers{suffix}"
    arguments = ("predict", run, "--input", place.rows, "--output", out, "--samples", 0)
    assert bara(*arguments).code == 0
    assert answers_in(out)
    assert_one_sentence(bara(*arguments), "already exists", "--overwrite")
    assert bara(*arguments, "--overwrite").code == 0


LINE = '{"id": "prompt-0", "number": 0, "prompt": "is the fox r\u00e9d ?", "reply": "yes"'


@pytest.mark.parametrize(("way", "lines"), [("--resume", 0), ("--resume", 1), ("--overwrite", 1)])
def test_a_file_of_replies_that_was_begun(
    way: str, lines: int, run: Path, tmp_path: Path, bara: Bara
) -> None:
    """By a process that was killed, or whose disk was full: empty, or half a line, of a letter even."""
    whole, begun = tmp_path / "whole.jsonl", tmp_path / "begun.jsonl"
    given = ("generate", run, "--prompt", "is the fox red ?", "--replies", 3, "--max-new-tokens", 2)
    assert bara(*given, "--output", whole).code == 0
    first = b"".join(whole.read_bytes().splitlines(keepends=True)[:lines])
    for left in (b"", b"{", b'{"id": "pro', LINE.encode(), LINE.encode()[:54]):
        begun.write_bytes(first + left)
        assert bara(*given, "--output", begun, way).code == 0
        assert begun.read_bytes() == whole.read_bytes()


def test_replies_that_were_never_begun_leave_no_file(
    run: Path, tmp_path: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> Iterator[dict]:
        raise KeyboardInterrupt
        yield {}

    output = tmp_path / "replies.jsonl"
    output.write_text('{"id": "p", "number": 0, "reply": "", "log_prob": 0.0, "made": ""}\n')
    before = files_below(tmp_path)
    monkeypatch.setattr("bara_pyro.extras.replies.generation.file.reply_lines", stopped)
    assert bara("generate", run, "--prompt", "fox", "--output", tmp_path / "new.jsonl").code == 130
    assert bara("generate", run, "--prompt", "fox", "--output", output, "--overwrite").code == 130
    assert files_below(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [name for name in FILES if not {"microworld", "reward", "lm-eval"} & {*name.split()}]
)
def test_an_empty_file_is_replaced(command: str, run: Path, place: Place, tmp_path: Path, bara: Bara) -> None:
    """`touch` and a shell's `>` make one; there is nothing in it to lose."""
    given, ending = FILES[command]
    target = tmp_path / f"empty{ending}"
    target.write_text("")
    rows = write_rows(tmp_path / "rows.jsonl", questions()[:4])
    typed = words(given, run=run, rows=rows, model=place.backbone, new=tmp_path / "new", target=target)
    found = bara(*command.partition(" --")[0].split(), *typed, "--overwrite")
    assert "was not written by bara" not in found.err


def test_a_name_that_no_file_can_have(run: Path, place: Place, tmp_path: Path, bara: Bara) -> None:
    long, odd = "n" * 256, "new\udcff"
    for command, given in {**FOLDERS, **{key: own for key, (own, _) in FILES.items()}}.items():
        names = (long, odd, f"{long}/file") if command in ("train", "predict") else (long,)
        for target in (tmp_path / name for name in names):
            typed = words(given, run=run, rows=place.rows, model=place.backbone, new=tmp_path, target=target)
            found = bara(*command.partition(" --")[0].split(), *typed)
            assert_one_sentence(found, "is not a valid file name")
            assert len(found.err) < 400


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


def test_only_train_says_resume(run: Path, bara: Bara, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    for command in (("export", run), ("push", run, "me/it")):
        refused = bara(*command, "--out", other)
        assert_one_sentence(refused, "already holds a run", "--overwrite")
        assert "--resume" not in refused.err

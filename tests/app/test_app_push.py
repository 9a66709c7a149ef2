"""`bara push`: the folder that is uploaded, its card, and what is said where the hub cannot be reached."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from app_cases import Bara, Place, assert_answers, assert_one_sentence, files_of, questions, write_rows
from huggingface_hub import ModelCard
from huggingface_hub.utils import filter_repo_objects

from bara_pyro.cli.running import run as train
from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.extras.hub.upload import prepare_upload, push
from bara_pyro.extras.hub.upload.scrub import hub_name, scrubbed
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.manifest import check_run, record_files
from bara_pyro.runs.predict import predict

NAME, BASE = "someone/colours", "Qwen/Qwen2.5-0.5B"


def texts(folder: Path) -> str:
    """Everything in a folder that can be read as text, with the headers of tensors."""
    return "\n".join(path.read_bytes().decode("latin-1") for path in folder.iterdir())


@pytest.fixture
def ready(run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a finished run of BaRA, prepared by somebody who is logged in."""
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
    return prepare_upload(run, NAME, run / "hub", base=BASE, license_name="apache-2.0")


def test_the_folder_holds_what_loading_needs_and_nothing_private(
    ready: Path, place: Place, run: Path
) -> None:
    assert files_of(ready) == {
        *("bara_config.json", "adapter_config.json", "adapter_model.safetensors", "guide.safetensors"),
        *("metrics.json", "README.md", "reliability.png", "manifest.json"),
    }
    written = texts(ready)
    for private in (str(place.backbone), str(place.rows), str(run), str(place.rows.parent), "hf_secret"):
        assert private not in written, private
    assert "fox-red" in (run / "predictions.jsonl").read_text() + place.rows.read_text()
    assert "fox-red" not in written  # a row's name
    assert json.loads((ready / "adapter_config.json").read_text())["base_model_name_or_path"] == BASE


def test_what_is_downloaded_answers_as_the_run_does(ready: Path, place: Place, run: Path) -> None:
    check_run(ready)
    rows = [{"question": row["question"]} for row in questions()[:6]]
    systems = [load_system(f, backbone=str(place.backbone), with_rows=False) for f in (run, ready)]
    ours, theirs = (predict(system, rows, samples=4).rows for system in systems)
    assert ours == theirs
    assert_answers(theirs, ["no", "yes"])


def test_the_card_says_what_was_measured_and_its_code_runs(
    ready: Path, place: Place, run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    card = ModelCard.load(ready / "README.md")  # the hub's own reader
    assert (card.data.base_model, card.data.license, card.data.library_name) == (BASE, "apache-2.0", "peft")
    measured = json.loads((run / "metrics.json").read_text())["metrics"]["3"]
    stated = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert {"acc", "ece", "nll"} <= {*stated} <= {*measured}
    assert stated == {key: round(measured[key], 4) for key in stated}
    assert f"| 3 | {measured['acc']:.1f} | {measured['ece']:.1f} | {measured['nll']:.3f} |" in card.text
    assert "temperature" not in card.text
    assert "(reliability.png)" in card.text
    code = [
        block.replace(BASE, str(place.backbone))
        for block in re.findall(r"```python\n(.*?)```", card.text, re.S)
    ]
    assert len(code) == 2
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions()[:3]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name: {NAME: ready}[name])
    names: dict = {}
    exec(code[0], names)
    assert_answers(names["answers"].rows, ["no", "yes"])


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_the_cards_code_for_peft_runs(ready: Path, place: Place) -> None:
    pytest.importorskip("peft")
    text = (ready / "README.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.S)[1]
    names: dict = {}
    exec(code.replace(BASE, str(place.backbone)).replace(NAME, str(ready)), names)
    assert names["model"](torch.tensor([[3, 4]])).logits.shape[:2] == (1, 2)


def test_methods_that_peft_cannot_read_are_not_said_to_be(place: Place, tmp_path: Path) -> None:
    train(place.config(method="ensemble", train__steps=2, predict__samples=[0]), tmp_path / "run")
    prepare_upload(tmp_path / "run", NAME, tmp_path / "out")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.library_name == "bara-pyro"
    assert card.data.base_model is None  # a folder's name is nobody's on the hub
    assert "PeftModel" not in card.text
    assert "`FOLDER` is where you have the language model" in card.text


def test_upload(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, uploaded = [], set()

    def create_repo(self: object, name: str, **options: object) -> None:
        calls.append((name, options))

    def upload_folder(
        self: object, *, repo_id: str, folder_path: Path, commit_message: str, allow_patterns: list[str]
    ) -> str:
        uploaded.update(filter_repo_objects(files_of(folder_path), allow_patterns=allow_patterns))
        return f"https://huggingface.co/{repo_id}"

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    assert push(run, NAME, tmp_path / "out", private=True) == f"https://huggingface.co/{NAME}"
    assert calls == [(NAME, {"private": True, "exist_ok": True})]
    assert uploaded == files_of(tmp_path / "out")
    assert {"README.md", "manifest.json", "guide.safetensors"} <= uploaded
    shutil.copy(run / "predictions.jsonl", tmp_path / "out")  # of the folder's owner
    uploaded.clear()
    push(run, NAME, tmp_path / "out")
    assert uploaded == files_of(tmp_path / "out") - {"predictions.jsonl"}
    before = (run / "bara_config.json").read_bytes()
    with pytest.raises(ConfigError, match="is the folder of the run"):
        push(run, NAME, run)
    assert (run / "bara_config.json").read_bytes() == before


def test_places_are_cut_whatever_they_look_like() -> None:
    said = {
        "notes": ["read from /home/John Smith/my rows/train.jsonl", "and file:///home/js/x.jsonl, ./so do"]
    }
    known = ["/home/John Smith/my rows", "./so do"]
    assert scrubbed(said, known) == {"notes": ["read from my rows/train.jsonl", "and x.jsonl, so do"]}
    assert scrubbed("https://example.org/a/b and 3 /s") == "https://example.org/a/b and 3 /s"


def test_a_place_with_a_space_in_it_is_not_published(place: Place, tmp_path: Path) -> None:
    """Notes of a run say where its rows were read."""
    secret = tmp_path / "John Smith" / "secret rows"
    secret.mkdir(parents=True)
    rows = write_rows(secret / "colours.jsonl", questions())
    train(place.config(task__name=str(rows), train__steps=2), tmp_path / "run")
    report = tmp_path / "run" / "metrics.json"
    report.write_text(json.dumps({**json.loads(report.read_text()), "notes": [f"rows of {rows}"]}))
    record_files(tmp_path / "run", "metrics.json")
    text = texts(prepare_upload(tmp_path / "run", NAME, tmp_path / "out", base=BASE))
    assert "rows of colours.jsonl" in text
    assert "Smith" not in text


def errors() -> list[Exception]:
    """What the hub's client raises: no network, no token, a refusal."""
    base = huggingface_hub.errors.HfHubHTTPError
    transport = type("ConnectError", (base.__bases__[0],), {})
    request = SimpleNamespace(method="POST", url="https://huggingface.co/api")
    refused = SimpleNamespace(status_code=403, headers={}, request=request, url="", text="")
    return [
        transport("no route"),
        huggingface_hub.errors.OfflineModeIsEnabled("offline mode is enabled"),
        huggingface_hub.errors.LocalTokenNotFoundError("no token"),
        base("403 Forbidden", response=refused),
    ]


@pytest.mark.parametrize("error", errors(), ids=lambda error: type(error).__name__)
def test_where_the_hub_cannot_be_reached_the_folder_is_ready(
    error: Exception, run: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuse)
    result = bara("push", run, NAME)
    assert_one_sentence(result, NAME, f"hf upload {NAME}", str(error).split(". ")[0])
    check_run(run / "hub")


def test_a_folder_that_is_there_is_replaced_only_when_told_to(run: Path, bara: Bara) -> None:
    for words, code in (((), 0), ((), 2), (("--overwrite",), 0)):
        assert bara("push", run, NAME, "--offline", *words).code == code


def test_what_cannot_be_pushed(run: Path, bara: Bara, tmp_path: Path) -> None:
    assert_one_sentence(bara("push", run, "a/b/c", "--offline"), "'a/b/c'", "user/model")
    assert_one_sentence(bara("push", run, "nouser", "--offline"), "'nouser'", "user")
    assert_one_sentence(bara("push", tmp_path / "none", NAME), "none")
    (run / "metrics.json").unlink()
    record_files(run, "metrics.json")
    with pytest.raises(CheckpointError, match=r"metrics\.json is missing"):
        prepare_upload(run, NAME, tmp_path / "out")


def test_what_was_pushed_goes_with_the_run_that_is_replaced(place: Place, bara: Bara, tmp_path: Path) -> None:
    run, arguments = tmp_path / "run", place.arguments(tmp_path / "run", "lora")
    assert bara(*arguments).code == 0
    assert f"Next: hf upload {NAME}" in bara("push", run, NAME, "--offline").out
    (run / "hub" / "notes.txt").write_text("mine")
    assert_one_sentence(bara(*arguments, "--overwrite"), "notes.txt was not written by bara")
    check_run(run / "hub")
    (run / "hub" / "notes.txt").unlink()
    result = bara(*arguments, "--overwrite")
    assert result.code == 0, result.err
    assert not (run / "hub").exists()
    check_run(run)


def test_another_run_in_the_place_of_what_is_pushed_is_kept(place: Place, run: Path, bara: Bara) -> None:
    assert bara(*place.arguments(run / "hub", "lora")).code == 0
    assert_one_sentence(bara(*place.arguments(run, "lora"), "--overwrite"), f"another run, {run / 'hub'}")
    check_run(run / "hub")


@pytest.mark.parametrize("command", ["evaluate", "inspect"])
def test_nothing_is_written_into_what_is_uploaded(command: str, ready: Path, run: Path, bara: Bara) -> None:
    before = files_of(ready)
    for out in ([], ["--out", ready / "more"]):
        assert_one_sentence(bara(command, ready, *out), "bara push", f"{run},")
    assert files_of(ready) == before
    assert not (ready / "more").exists()


def test_what_is_uploaded_is_evaluated_elsewhere(
    ready: Path, place: Place, bara: Bara, tmp_path: Path
) -> None:
    asked = ["--model", place.backbone, "--task", place.rows, "--samples", 0]
    assert bara("evaluate", ready, *asked, "--out", tmp_path / "scores").code == 0
    shutil.copytree(ready, tmp_path / "downloaded")
    assert bara("evaluate", tmp_path / "downloaded", *asked).code == 0


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("rows of /home/me/secret/rows.csv", "rows of rows.csv"),
        ("C:\\Users\\me\\rows.csv", "rows.csv"),
        ("~/data/rows.csv", "rows.csv"),
        ("Qwen/Qwen2.5-0.5B at 3/4", "Qwen/Qwen2.5-0.5B at 3/4"),
        ("see https://huggingface.co/a/b", "see https://huggingface.co/a/b"),
    ],
)
def test_paths_are_cut_down_to_their_last_part(text: str, left: str) -> None:
    assert scrubbed({"a": [text, 3, None]}) == {"a": [left, 3, None]}


def test_names_of_the_hub_are_told_from_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "model").mkdir(parents=True)
    assert hub_name(BASE) == BASE
    for folder in ("runs/model", "microworld", "/data/model", "./runs/other", "../model"):
        assert hub_name(folder) is None, folder

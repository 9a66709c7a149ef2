"""`bp.train`, `bp.evaluate`, `bp.predict` and `bp.generate` do what the commands of the same names do."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from app_cases import Bara, Place

import bara_pyro as bp
from bara_pyro.runs.system import System
from bara_pyro.untrusted.files import read_json, read_jsonl

STEPS = {"method": "bara-gate", "steps": 3, "r": 4}
QUESTIONS = [{"id": "one", "question": "is the fox red ?"}, {"id": "two", "question": "is the cow grey ?"}]

ASKED = (["is the fox red ?"], [{"id": "row-1", "question": "is the fox red ?"}])
UNNEEDED = ("arviz", "datasets", "matplotlib", "pandas", "peft", "scipy.stats", "sklearn", "xarray")
OWN = {"bara_pyro", "pydantic", "pydantic_core", "annotated_types", "typing_inspection"}
"""What training, scores and answers import beyond transformers and Pyro."""
OF_COMMANDS = {"typer", "rich", "shellingham", "annotated_doc"}


def trained(place: Place, out: Path, **settings: object) -> System:
    return bp.train(task=place.rows, model=place.backbone, out=out, **{**STEPS, **settings})


@pytest.fixture(scope="module")
def run(place: Place, tmp_path_factory: pytest.TempPathFactory) -> System:
    return trained(place, tmp_path_factory.mktemp("api") / "run")


def test_the_run_and_its_scores_are_those_of_the_command(place: Place, tmp_path: Path, bara: Bara) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    report = bp.evaluate(trained(place, ours), out=ours)
    options = ("--steps", 3, "--r", 4, "--method", "bara-gate")
    assert bara("train", "--task", place.rows, "--model", place.backbone, "--out", theirs, *options).code == 0
    for name in ("adapter_model.safetensors", "guide.safetensors", "bara_config.json", "predictions.jsonl"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    assert report["metrics"] == read_json(theirs / "metrics.json")["metrics"]
    assert report == read_json(ours / "metrics.json")


def test_answers_are_those_of_the_command(place: Place, tmp_path: Path, bara: Bara) -> None:
    run, rows, out = trained(place, tmp_path / "run"), tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    assert bara("predict", tmp_path / "run", "--input", rows, "--output", out, "--samples", 3).code == 0
    assert bp.predict(run, QUESTIONS, samples=3).lines() == read_jsonl(out)
    assert bp.predict(run, rows, samples=3).lines() == read_jsonl(out)


@pytest.mark.slow
def test_an_answer_loads_no_package_for_tables_plots_or_statistics(place: Place, tmp_path: Path) -> None:
    """In a process of its own: in this one they have been imported."""
    trained(place, tmp_path / "run")
    code = f"""if True:
        import gc, sys
        for name in {UNNEEDED}:
            sys.modules[name] = None  # importing it fails
        import bara_pyro as bp
        texts, rows = (bp.predict(sys.argv[1], asked, samples=2) for asked in {ASKED})
        assert gc.isenabled()
        print(texts.rows[0]["probs"] == rows.rows[0]["probs"], "bara_pyro.diagnostics" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "run"], check=False, capture_output=True, text=True
    )
    assert done.stdout == "True False\n", done.stderr


@pytest.mark.slow
def test_a_run_imports_no_more_than_transformers_and_pyro_do(place: Place, tmp_path: Path) -> None:
    code = """if True:
        import sys
        import pyro
        from transformers import AutoModelForCausalLM, AutoTokenizer
        rows, backbone, out, question = sys.argv[1:]
        AutoTokenizer.from_pretrained(backbone)
        AutoModelForCausalLM.from_pretrained(backbone)

        def beyond(before):
            after = {name for name in sys.modules if not name.startswith("torch.")}
            return {name if name.startswith(("transformers.", "pyro.")) else name.partition(".")[0]
                    for name in after - before} - sys.stdlib_module_names

        before = {*sys.modules}
        import bara_pyro as bp
        bp.train(task=rows, model=backbone, out=out, steps=1)
        bp.evaluate(out)
        bp.predict(out, [question], samples=1)
        print(*beyond(before))
        before = {*sys.modules}
        sys.argv = ["bara", "predict", out, question]
        from bara_pyro.cli import app
        try:
            app.main()
        except SystemExit:
            print()
            print(*beyond(before))
    """
    arguments = (place.rows, place.backbone, tmp_path / "run", "is the fox red ?")
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-500:]
    in_python, *_, in_commands = done.stdout.splitlines()
    assert {*in_python.split()} <= OWN
    assert {*in_commands.split()} <= OWN | OF_COMMANDS


def test_replies_are_those_of_the_command(tmp_path: Path, bara: Bara) -> None:
    chat = bp.load_replies("micro-chat")
    run = bp.train(task=chat, out=tmp_path / "run", steps=1, limit=8)  # the rows say that replies are learnt
    assert run.config.task.likelihood == "completion"
    prompts, lines, out = (
        ["the guest lives in", "in winter"],
        tmp_path / "prompts.jsonl",
        tmp_path / "out.jsonl",
    )
    lines.write_text("".join(json.dumps({"id": str(n), "prompt": p}) + "\n" for n, p in enumerate(prompts)))
    options = ("--replies", 2, "--uncertainty", 2, "--max-new-tokens", 4, "--seed", 5)
    assert bara("generate", tmp_path / "run", "--input", lines, "--output", out, *options).code == 0
    how = {"replies": 2, "uncertainty": 2, "max_new_tokens": 4, "seed": 5}
    assert bp.generate(run, prompts, **how) == read_jsonl(out)  # texts are numbered from 0
    assert bp.generate(run, lines, **how) == read_jsonl(out)


def test_nothing_is_written_where_no_folder_is_given(run: System, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    report = bp.evaluate(run, samples=2)
    assert list(report["metrics"]) == ["2"]
    assert sorted(tmp_path.rglob("*")) == before
    assert run.config.predict.samples == [0, 10]  # the run's own are as they were


def test_settings_go_by_the_names_of_the_options_and_by_dotted_keys(place: Place, tmp_path: Path) -> None:
    given = {"lr": 1e-4, "predict_seed": 7, "train.warmup": 0.5, "method.beta_phi": 2.0}
    config = trained(place, tmp_path / "run", **given).config
    assert (config.train.lr, config.predict.seed, config.train.warmup) == (1e-4, 7, 0.5)
    assert (config.method.name, config.method.form, config.method.beta_phi) == ("bara-gate", "gate", 2.0)


def test_a_language_model_that_is_loaded_is_taken(place: Place, tmp_path: Path) -> None:
    backbone = bp.load_backbone(place.backbone)
    run = bp.train(task=place.rows, model=backbone, out=tmp_path / "run", **STEPS)
    assert run.backbone is backbone
    assert run.config.backbone.name == str(place.backbone)
    assert bp.load_system(tmp_path / "run").config == run.config


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"stepz": 3}, r"Unknown setting 'stepz' \(steps\?\): choose one of accumulate, "),
        ({"steps": 0}, "steps"),
        ({"method": "bora"}, "Unknown method 'bora'"),
        ({"method.fom": "gate"}, "fom"),
    ],
)
def test_a_slip_is_told_before_anything_is_written(
    settings: dict[str, object], says: str, place: Place, tmp_path: Path
) -> None:
    with pytest.raises(bp.BaraError, match=says):
        trained(place, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "bara_config.json").write_text("{}")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_model.safetensors").write_text("")
    (tmp_path / "file").write_text("")
    (tmp_path / "odd.csv").write_text("this,that\na,b\n")
    (tmp_path / "replies.csv").write_text("prompt,completion\na,b\n")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"out": "run"}, "resume=True"),
        ({"out": "adapter"}, "another out"),
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

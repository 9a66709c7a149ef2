"""`bp.train`, `bp.evaluate`, `bp.predict` and `bp.generate` do what the commands of the same names do."""

import json
from pathlib import Path

import pytest
from app_cases import Bara, Place, files_below

import bara_pyro as bp
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train as fit
from bara_pyro.untrusted.files import read_json, read_jsonl

STEPS = {"method": "bara-gate", "steps": 3, "r": 4}
QUESTIONS = [{"id": "one", "question": "is the fox red ?"}, {"id": "two", "question": "is the cow grey ?"}]


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


def test_a_run_that_is_there_is_kept_and_gone_on_with_when_asked(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = trained(place, out)
    before = (out / "guide.safetensors").read_bytes()
    with pytest.raises(bp.BaraError, match="already holds a run"):
        trained(place, out)
    again = trained(place, out, resume=True)
    assert (out / "guide.safetensors").read_bytes() == before
    asked = [bp.predict(run, QUESTIONS, samples=2).rows for run in (first, again)]
    assert asked[0] == asked[1]


def test_a_run_goes_on_with_its_own_settings_alone(place: Place, tmp_path: Path) -> None:
    """Finished or half-way: none has to be given again, another is refused by its name, nothing is lost."""
    out = tmp_path / "run"
    first = trained(place, out, lr=0.02)
    kept = files_below(out)
    again = bp.train(out=out, resume=True)
    assert again.config == first.config
    assert bp.predict(again, QUESTIONS, samples=2).rows == bp.predict(first, QUESTIONS, samples=2).rows
    for given, named in (
        ({"lr": 0.5}, r"another train\.lr:"),
        ({"method": "lora"}, "another method, 'bara-gate'"),
        ({"method": {"name": "bara-gate", "beta_phi": 0.5}}, r"another method\.beta_phi:"),
        ({"steps": 9, "r": 2}, r"another adapter\.r, train\.steps:"),
        ({"task": "micro-wgs"}, r"another task\.name:"),
    ):
        with pytest.raises(bp.BaraError, match=named):
            bp.train(out=out, resume=True, **given)  # type: ignore[arg-type]
    assert files_below(out) == kept
    for name in ("guide.safetensors", "adapter_model.safetensors", "manifest.json"):
        (out / name).unlink()
    with pytest.raises(bp.BaraError, match="another seed"):
        bp.train(out=out, resume=True, seed=5)
    bp.train(out=out, resume=True)
    assert files_below(out).keys() == kept.keys()
    assert files_below(out)["guide.safetensors"] == kept["guide.safetensors"]


def test_a_system_with_other_settings_does_not_go_on_with_a_run(place: Place, tmp_path: Path) -> None:
    """Whoever calls the loop: it would train anew over what is there."""
    out = tmp_path / "run"
    trained(place, out)
    kept = files_below(out)
    system = build_system(place.config(method="bara-gate", adapter__r=4, train__steps=3, train__lr=0.5))
    with pytest.raises(bp.BaraError, match=r"another .*train\.lr"):
        fit(system, out, resume=True)
    assert files_below(out) == kept

"""`bara lm-eval`: a table, a file, one sentence for what is wrong."""

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from app_cases import Bara, Place, assert_one_sentence

from bara_pyro.cli.running import run as train


@pytest.fixture(scope="module")
def run(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    train(place.config(method__name="bara", train__steps=4, predict__samples=[0]), out)
    return out


def test_a_run_before_and_after_training(run: Path, rows: Path, bara: Bara, tmp_path: Path) -> None:
    reports = {}
    for predictive in ("joint", "base"):
        out = tmp_path / f"{predictive}.json"
        draws = ("--samples", 2, "--seed", 3) if predictive == "joint" else ()
        options = ["--data-dir", rows, "--predictive", predictive, *draws, "--limit", 6, "--out", out]
        result = bara("lm-eval", run, "--tasks", "arc_easy,boolq", *options)
        assert result.code == 0, result.err
        assert "bara_arc_easy" in result.out
        assert "acc_norm" in result.out
        assert f", {predictive}" in result.out
        follows = result.out.splitlines()[-1]
        assert follows.startswith("Next: bara lm-eval")
        assert ("--predictive base" in follows) == (predictive != "base")
        reports[predictive] = json.loads(out.read_text())
    about = reports["joint"]["model"]
    assert (about["method"], about["predictive"], about["samples"], about["seed"]) == ("bara", "joint", 2, 3)
    assert reports["base"]["model"]["samples"] is None
    for report in reports.values():
        assert report["lm_eval"] == version("lm_eval")
        assert report["versions"] == {"bara_arc_easy": 1.0, "bara_boolq": 2.0}
        assert report["n-samples"]["bara_boolq"] == {"original": 12, "effective": 6}


def test_a_bare_language_model_as_json(place: Place, rows: Path, bara: Bara) -> None:
    options = ["--data-dir", rows, "--predictive", "base", "--limit", 2, "--json", "--quiet"]
    result = bara("lm-eval", place.backbone, "--tasks", "bara_winogrande", *options)
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert set(report["results"]) == {"bara_winogrande"}
    assert report["model"]["method"] is None
    assert result.err == ""


def test_what_is_left_out_is_said(place: Place, rows: Path, bara: Bara) -> None:
    options = ["--data-dir", rows, "--law", "base", "--limit", 2, "--num-fewshot", 11]
    result = bara("lm-eval", place.backbone, "--tasks", "arc_easy", *options)
    assert result.code == 0, result.err
    assert "--law is now --predictive" in result.err + result.out
    assert "contexts were cut to their last 64 tokens" in result.out


def test_only_its_own_files_are_replaced(run: Path, rows: Path, bara: Bara, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    arguments = [
        "lm-eval",
        run,
        "--tasks",
        "arc_easy",
        "--data-dir",
        rows,
        "--predictive",
        "mean",
        "--limit",
        1,
    ]
    out.write_text("{}")
    refused = bara(*arguments, "--out", out, "--overwrite")
    assert_one_sentence(refused, "was not written by bara")
    out.unlink()
    assert bara(*arguments, "--out", out).code == 0
    assert_one_sentence(bara(*arguments, "--out", out), "--overwrite")
    assert bara(*arguments, "--out", out, "--overwrite").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{run} --tasks nothing --data-dir {rows}", "The task 'nothing' cannot read"),
        ("{run} --tasks bara_boolq", "give their folder with --data-dir"),
        ("{run} --tasks , --data-dir {rows}", "There are no tasks"),
        ("{run} --tasks boolq --data-dir {run}", "which bara_boolq needs"),
        ("{run} --tasks boolq --data-dir {rows}/absent", "no folder"),
        ("{run} --tasks boolq --include-path {rows}/absent", "no folder"),
        (
            "{run} --tasks boolq --predictive median",
            "'--predictive': 'median' is not one of 'joint', 'token'",
        ),
        ("{run} --tasks boolq --samples 0", "--samples"),
        ("{run} --tasks boolq --data-dir {rows} --dtype bfloat16", "which has its own type"),
        ("{run} --tasks boolq --data-dir {rows} --out {rows}/boolq/x.json", "the input"),
        (
            "{backbone} --tasks boolq --data-dir {rows}",
            "is a language model, but --predictive joint needs a run",
        ),
        ("{backbone} --tasks boolq --data-dir {rows} --predictive mean", "give --predictive base, or a run"),
        (
            "{rows} --tasks boolq --data-dir {rows}",
            "is missing or was not written by bara_pyro): train one with",
        ),
        (
            "{backbone} --tasks boolq --data-dir {rows} --predictive base --model microworld",
            "leave one of them out",
        ),
        ("{rows} --tasks boolq --data-dir {rows} --predictive base", "Cannot load the backbone"),
        ("{run}", "--tasks"),
    ],
)
def test_refused(arguments: str, said: str, run: Path, rows: Path, place: Place, bara: Bara) -> None:
    names = {"run": str(run), "rows": str(rows), "backbone": str(place.backbone)}
    result = bara("lm-eval", *(word.format(**names) for word in arguments.split()))
    assert result.code == 2, result.err
    assert_one_sentence(result, said)


def test_the_example_of_the_page_runs(run: Path, rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "transformers.md").read_text()
    *_, block = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    offline, hub = block.split("lm_eval.simple_evaluate(")
    assert "from the hub" in hub
    for old, new in (("runs/mine", str(run)), ('"rows"', repr(str(rows)))):
        assert old in offline
        offline = offline.replace(old, new)
    exec(compile(offline, "docs/transformers.md", "exec"), {})
    assert 0 <= float(capsys.readouterr().out) <= 1


def test_without_lm_eval_the_way_to_it_is_said(
    run: Path, rows: Path, bara: Bara, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("bara_pyro.extras.lmeval.harness")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    result = bara("lm-eval", run, "--tasks", "boolq", "--data-dir", rows)
    assert_one_sentence(result, "pip install 'bara-pyro[lm-eval]'")

"""An experiment from its arms to the file that the results page reads: with runs, and one that fails."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from study_cases import lines_of

from bara_pyro.errors import ConfigError, TrainingError
from bara_pyro.lm.loading import load_backbone
from bara_pyro.lm.verifying import fingerprint
from bara_pyro.untrusted.files import read_json
from experiments.engine import sweep
from experiments.engine.arguments import experiment_parser
from experiments.engine.record import read_record
from experiments.engine.results import find_results, load_study, read_results, results_path
from experiments.engine.rows import lacking, rows_of_study
from experiments.engine.run import SEED, run_study


def arguments(base: dict[str, Any], runs: Path) -> Any:
    parser = experiment_parser("")
    task = ("--tasks", base["task.name"], "--model", base["backbone.name"])
    places = ("--runs", str(runs), "--out", str(runs.parent / "results"))
    return parser.parse_args([*task, *places, "--seeds", "2", "--steps", "6", "--launcher", "serial"])


def test_from_arms_to_a_study(base: dict[str, Any], tmp_path: Path) -> None:
    args = arguments(base, tmp_path / "runs")
    arms = {
        "lora": {"method": "lora", "predict.samples": [0, 3]},
        "bara": {"method": "bara", "predict.samples": [0, 3]},
        # No validation rows: refused before it trains.
        "broken": {"method": "temperature", "predict.samples": [0, 3]},
    }
    run_study("some", arms, args)
    study = load_study("some", tmp_path / "results")
    assert list(study.arms) == list(arms)
    (task,) = study.tasks
    assert [sorted(study.arms[arm][task]) for arm in arms] == [[0, 1]] * 3
    assert ["failed" in study.arms[arm][task][0] for arm in arms] == [False, False, True]
    assert {(c["arm"], c["reference"]) for c in study.comparisons} == {("bara", "lora")}
    record = study.arms["bara"][task][1]
    own = tmp_path / "runs" / record["config_hash"]
    assert record["metrics"] == read_json(own / "metrics.json")["metrics"]
    assert record == read_record(tmp_path / "runs" / "records" / f"{record['config_hash']}.json")
    assert str(tmp_path) not in json.dumps(lines_of("some", tmp_path / "results"))
    assert lacking("some", tmp_path / "results") == []


def test_a_setting_that_changes_with_the_seed(base: dict[str, Any], tmp_path: Path) -> None:
    arms = {"lora": {"method": "lora", "task.train_rows": 7, "task.train_rows_seed": SEED}}
    run_study("some", arms, arguments(base, tmp_path / "runs"))
    study = load_study("some", tmp_path / "results")
    settings = [study.arms["lora"][study.tasks[0]][seed]["config"]["task"] for seed in (0, 1)]
    assert [own["train_rows_seed"] for own in settings] == [0, 1]


def test_nothing_but_failures_is_an_error(base: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="Every run of none failed"):
        run_study("none", {"t": {"method": "temperature"}}, arguments(base, tmp_path / "runs"))
    assert not results_path("none", tmp_path / "results").exists()


def test_what_is_not_asked_for_stays(base: dict[str, Any], tmp_path: Path) -> None:
    arms = {method: {"method": method, "predict.samples": [0, 3]} for method in ("lora", "bara")}
    args, results = arguments(base, tmp_path / "runs"), tmp_path / "results"
    run_study("some", arms, args)
    before, rows = load_study("some", results), rows_of_study("some", results)
    args.seeds = 1
    run_study("some", {"lora": arms["lora"]}, args)
    assert load_study("some", results).arms == before.arms
    assert [run.place for run in rows_of_study("some", results)] == [run.place for run in rows]
    assert read_results("some", results).about["seeds"] == 2
    args.steps = 5
    with pytest.raises(ConfigError, match="--steps 6, not 5"):
        run_study("some", arms, args)


def test_another_language_model_under_the_same_name_is_refused(
    base: dict[str, Any], tmp_path: Path, trained: list[str]
) -> None:
    """A table of runs on two language models would be one of neither."""
    args, results = arguments(base, tmp_path / "runs"), tmp_path / "results"
    args.seeds, args.model = 1, str(tmp_path / "lm")
    shutil.copytree(base["backbone.name"], args.model)
    run_study("some", {"lora": {"method": "lora"}}, args)
    (record,) = load_study("some", results).records
    assert record["backbone_fingerprint"] == fingerprint(load_backbone(args.model))
    weights = tmp_path / "lm" / "model.safetensors"
    save_file({name: 2 * value for name, value in load_file(weights).items()}, weights, {"format": "pt"})
    sweep._loaded.clear()  # as another process finds it
    both = {"lora": {"method": "lora"}, "bara": {"method": "bara"}}
    args.out = tmp_path / "none"
    with pytest.raises(ConfigError, match=record["backbone_fingerprint"]):
        run_study("other", both, args)
    assert trained == ["lora", "bara"]
    assert find_results("other", args.out) is None

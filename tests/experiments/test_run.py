"""An experiment from its arms to the file that the results page reads: with runs, and one that fails."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from study_cases import lines_of

from bara_pyro.atomic import write_json
from bara_pyro.errors import ConfigError, TrainingError
from bara_pyro.lm.loading import load_backbone
from bara_pyro.runs.fingerprint import fingerprint
from bara_pyro.untrusted.files import read_json
from experiments.engine.arguments import experiment_parser
from experiments.engine.differences import Comparisons
from experiments.engine.record import read_record
from experiments.engine.results import load_study, results_path, stored_records
from experiments.engine.rows import lacking, rows_of_study, rows_path
from experiments.engine.run import SEED, run_study


def arguments(base: dict[str, Any], runs: Path) -> Any:
    parser = experiment_parser("", runs=str(runs))
    task = ("--tasks", base["task.name"], "--model", base["backbone.name"])
    more = ("--seeds", "2", "--steps", "6", "--launcher", "serial", "--out", str(runs.parent / "results"))
    return parser.parse_args([*task, *more])


def test_from_arms_to_a_study(base: dict[str, Any], tmp_path: Path) -> None:
    args = arguments(base, tmp_path / "runs")
    arms = {
        "lora": {"method": "lora", "predict.samples": [0, 3]},
        "bara": {"method": "bara", "predict.samples": [0, 3]},
        # No validation rows: refused before it trains.
        "broken": {"method": "temperature", "predict.samples": [0, 3]},
    }
    run_study("some", arms, args, comparisons=Comparisons())
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


def test_what_is_finished_is_written_down(base: dict[str, Any], tmp_path: Path) -> None:
    """One arm with both seeds, another with none or one of them; nothing is run."""
    lora, bara = {"method": "lora"}, {"method": "bara"}
    args = arguments(base, tmp_path / "runs")
    args.finished = True
    with pytest.raises(TrainingError, match="No run of this study is finished"):
        run_study("some", {"lora": lora, "bara": bara}, args)
    args.finished, args.out = False, tmp_path / "other"
    run_study("other", {"lora": lora}, args)
    args.seeds = 1
    run_study("other", {"bara": bara}, args)
    args.seeds, args.finished, args.out = 2, True, tmp_path / "results"
    run_study("some", {"lora": lora, "bara": bara}, args)
    arms = load_study("some", tmp_path / "results").arms
    (task,) = arms["lora"]
    assert {arm: list(arms[arm][task]) for arm in arms} == {"lora": [0, 1], "bara": [0]}
    records = list((tmp_path / "runs" / "records").glob("*.json"))
    assert len(records) == 3
    for path in records:  # as other code made them: what is to be made again is not finished
        write_json(path, {**read_json(path), "code": None})
    args.reuse = "same"
    with pytest.raises(TrainingError, match="No run of this study is finished"):
        run_study("none", {"lora": lora, "bara": bara}, args)


def test_nothing_but_failures_is_an_error(base: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="Every run of none failed"):
        run_study("none", {"t": {"method": "temperature"}}, arguments(base, tmp_path / "runs"))
    assert not results_path("none", tmp_path / "results").exists()


def test_what_was_committed_is_not_done_again(base: dict[str, Any], tmp_path: Path) -> None:
    """On another machine, which has the records and the rows, and no folder of the runs."""
    arms = {"lora": {"method": "lora"}, "bara": {"method": "bara", "predict.samples": [0, 3]}}
    results = tmp_path / "results"
    run_study("some", arms, arguments(base, tmp_path / "runs"))
    before = load_study("some", results)
    args = arguments(base, tmp_path / "elsewhere")
    args.seeds = 3
    run_study("some", arms, args)
    after = load_study("some", results)
    (task,) = after.tasks
    new = {after.arms[arm][task][2]["config_hash"] for arm in arms}
    assert {path.stem for path in (tmp_path / "elsewhere" / "records").glob("*.json")} == new
    assert all(after.arms[arm][task][seed] == before.arms[arm][task][seed] for arm in arms for seed in (0, 1))
    assert lacking("some", results) == []
    rows_path("some", results).unlink()  # without the rows a record is not enough
    run_study("some", arms, args)
    assert len(list((tmp_path / "elsewhere" / "records").glob("*.json"))) == 6


def test_what_is_not_asked_for_stays(base: dict[str, Any], tmp_path: Path) -> None:
    arms = {"lora": {"method": "lora"}, "bara": {"method": "bara", "predict.samples": [0, 3]}}
    args, results = arguments(base, tmp_path / "runs"), tmp_path / "results"
    run_study("some", arms, args)
    before, rows = load_study("some", results), rows_of_study("some", results)
    args.seeds = 1
    run_study("some", {"lora": arms["lora"]}, args)
    assert load_study("some", results).arms == before.arms
    assert [run.place for run in rows_of_study("some", results)] == [run.place for run in rows]
    assert load_study("some", results).settings["seeds"] == 2
    args.steps = 5
    with pytest.raises(ConfigError, match="runs of 6 steps, asked for are 5"):
        run_study("some", arms, args)


def test_another_language_model_under_the_same_name_is_refused(
    base: dict[str, Any], tmp_path: Path, trained: list[str]
) -> None:
    """Its runs would have the hashes, and take the places, of those on the first one."""
    args, results = arguments(base, tmp_path / "runs"), tmp_path / "results"
    args.seeds, args.model = 1, str(tmp_path / "lm")
    shutil.copytree(base["backbone.name"], args.model)
    run_study("some", {"lora": {"method": "lora"}}, args)
    (record,) = load_study("some", results).records
    assert record["backbone_fingerprint"] == fingerprint(load_backbone(args.model))
    weights = tmp_path / "lm" / "model.safetensors"
    save_file({name: 2 * value for name, value in load_file(weights).items()}, weights, {"format": "pt"})
    # Another study, in another folder: what is committed of the first stands in the way.
    args.runs = tmp_path / "elsewhere"
    with pytest.raises(ConfigError, match="give the folder another name"):
        run_study("other", {"lora": {"method": "lora"}}, args)
    # The folder of the runs itself.
    args.runs, args.out = tmp_path / "runs", tmp_path / "none"
    both = {"lora": {"method": "lora"}, "bara": {"method": "bara"}}
    with pytest.raises(ConfigError, match=record["backbone_fingerprint"]):
        run_study("other", both, args)
    assert trained == ["lora"]
    assert stored_records(results) == {record["config_hash"]: record}

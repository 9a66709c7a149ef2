"""What a record says is what the run's predictions and draws say; what is no record is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from study_cases import invent, load_records, records_of

from bara_pyro.atomic import write_json
from bara_pyro.errors import DataError
from bara_pyro.extras.hub.upload.scrub import scrubbed
from bara_pyro.metrics import ece
from bara_pyro.runs.config import load_config
from bara_pyro.runs.folder import load_system
from bara_pyro.untrusted.files import read_json
from experiments.engine.record import identity, load_predictions, read_record
from experiments.engine.results import RESULTS, changing, load_study, read_store, results_path, write_study
from experiments.engine.sweep import Run, sweep


@pytest.fixture(scope="module")
def finished(base: dict[str, Any], shifted: str, tmp_path_factory: pytest.TempPathFactory):
    """Return the folder and the record of a run of BaRA with a shifted task, and LoRA's record."""
    folder = tmp_path_factory.mktemp("record")
    own = [{**base, "method": method, "train.lr": 0.03} for method in ("bara", "lora")]
    bara, lora = sweep([Run(one, folder, (shifted,)) for one in own], launcher="serial").values()
    return folder / bara["config_hash"], bara, lora


def test_the_record_holds_the_scores_of_the_run(finished) -> None:
    out, record, _ = finished
    report = read_json(out / "metrics.json")
    for key in ("metrics", "parameters", "sparsity", "environment", "task", "seed"):
        assert record[key] == report[key]
    # A record is named by what was asked for; the run by what its rows made of that.
    assert record["config_hash"] == out.name
    assert report["config_hash"] == load_system(out).config.hash != record["config_hash"]
    assert record["steps"] == 6
    assert record["wall_clock_train_s"] is not None
    assert len((out.parent / "records" / f"{record['config_hash']}.json").read_bytes()) < 12_000


def test_what_was_fitted_after_training_is_kept(finished) -> None:
    """Both have few rows here, and so split-half calibration."""
    out, bara, lora = finished
    fitted = read_json(out / "fitted.json")
    assert bara["fitted"] == {key: value for key, value in fitted.items() if key != "calibrated_seconds"}
    for record in (bara, lora):
        assert record["fitted"]["calibrated_steps"] == record["steps"]


def test_scores_are_those_of_the_predictions(finished) -> None:
    out, record, _ = finished
    labels, predicted = load_predictions(out)
    assert set(predicted) == {0, 3}
    for samples, log_probs in predicted.items():
        assert record["metrics"][str(samples)]["ece"] == pytest.approx(ece(log_probs, labels))


def test_a_record_does_not_say_where_this_machine_keeps_its_files(finished, tmp_path: Path) -> None:
    out, record, _ = finished
    assert str(out.parent) not in json.dumps(record)
    assert record["settings"]["backbone.name"] == record["config"]["backbone"]["name"] == "backbone"
    assert record["settings"]["task.name"] == record["config"]["task"]["name"] == "colours.jsonl"
    hub = load_config(overrides={"backbone.name": "Qwen/Qwen2.5-0.5B", "task.data_dir": tmp_path})
    said = identity(hub, {"backbone.name": "Qwen/Qwen2.5-0.5B", "task.data_dir": tmp_path})
    assert said["settings"] == {"backbone.name": "Qwen/Qwen2.5-0.5B", "task.data_dir": tmp_path.name}


def test_records_are_written_and_read_back(finished, tmp_path: Path) -> None:
    out, *records = finished
    assert load_records(out.parent / "records") == sorted(records, key=lambda r: r["config_hash"])
    runs = [
        {"hash": r["config_hash"], "arm": r["method"], "task": r["task"], "seed": r["seed"]} for r in records
    ]
    write_study("some", runs, records, {}, folder=tmp_path)
    assert load_study("some", tmp_path).records == records


def test_what_a_record_says_names_no_folder_of_the_machine(finished, tmp_path: Path) -> None:
    kept = finished[1] | {"notes": ["30 MiB in /home/ada/lab/states"], "failed": "no file /home/ada/x"}
    run = {"hash": kept["config_hash"], "arm": "bara", "task": kept["task"], "seed": kept["seed"]}
    write_study("some", [run], [kept], {}, folder=tmp_path)
    (found,) = records_of("some", tmp_path).values()
    assert found == kept | {"notes": ["30 MiB in states"], "failed": "no file x"}
    stored = {
        key: record for path in RESULTS.glob("*.gz") for key, record in read_store(path).records.items()
    }
    assert len(stored) > 1000
    for key, record in stored.items():
        words = [record.get(name) for name in ("notes", "failed")]
        assert words == scrubbed(words), key


Break = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: [record], "not the record of a run"),
        (lambda record: {**record, "kind": "other"}, "not the record of a run"),
        (lambda record: {**record, "schema": 99}, "schema 99"),
        (lambda record: {k: v for k, v in record.items() if k != "metrics"}, "lacks 'metrics'"),
        (lambda record: {k: v for k, v in {**record, "failed": ""}.items() if k != "seed"}, "lacks 'seed'"),
    ],
)
def test_a_file_that_is_no_record_is_refused(finished, tmp_path: Path, change: Break, said: str) -> None:
    write_json(tmp_path / "a.json", change(finished[1]))
    with pytest.raises(DataError, match=said) as raised:
        load_records(tmp_path)
    assert "a.json" in str(raised.value)
    assert str(raised.value).endswith(".")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record.update(kind="other"), "not the record of a run"),
        (lambda record: record.update(schema=99), "schema 99"),
        (lambda record: record.pop("metrics"), "lacks 'metrics'"),
    ],
)
def test_a_stored_record_that_is_none_is_refused(tmp_path: Path, change: Break, said: str) -> None:
    run = invent("some", tmp_path, arms=["lora"], tasks={"t": 20}, seeds=1)[0]
    with changing(results_path("some", tmp_path)) as store:
        change(store.records[run["hash"]])
    with pytest.raises(DataError, match=f"some.*{said}"):
        load_study("some", tmp_path)


def test_a_failed_record_needs_no_scores(finished, tmp_path: Path) -> None:
    needed = (
        "schema",
        "kind",
        "config_hash",
        "settings",
        "config",
        "method",
        "task",
        "split",
        "seed",
        "steps",
    )
    write_json(tmp_path / "a.json", {key: finished[1][key] for key in needed} | {"failed": "It broke."})
    assert read_record(tmp_path / "a.json")["failed"] == "It broke."


def test_a_folder_without_predictions_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no predictions"):
        load_predictions(tmp_path)

"""A run is its configuration: done once, shared, gone on with; what fails is recorded and stops nothing."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from study_cases import load_records

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.untrusted.files import read_json
from experiments.engine import sweep as program
from experiments.engine.launchers import LAUNCHERS, Lost
from experiments.engine.sweep import Run, sweep

Make = Callable[..., Run]
# Training breaks at the second step.
WILD = {"train.lr": 1e30}


def run(jobs: list[Run], **options) -> list[dict]:
    records = sweep(jobs, launcher="serial", **options)
    return [records[job.name] for job in jobs]


def test_the_same_configuration_is_the_same_run_however_it_is_written(job: Make) -> None:
    written = [job(), job(seed=0), job(**{"train.batch_size": 4, "train.clip_norm": None}), job(seed=1)]
    names = [one.name for one in written]
    assert names[0] == names[1] == names[2] != names[3]


def test_jobs_that_ask_for_the_same_share_one_run(job: Make, trained: list[str]) -> None:
    records = run([job(), job("bara"), job(seed=0)])
    assert sorted(trained) == ["bara", "lora"]
    assert records[0] is records[2]
    assert [r["method"] for r in records] == ["lora", "bara", "lora"]


def test_finished_runs_are_not_redone(job: Make, tmp_path: Path, trained: list[str]) -> None:
    first = run([job(), job(seed=1)])
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    again = run([job(seed=1), job()])
    assert trained == ["lora", "lora"]
    assert again == [read_json(tmp_path / "records" / f"{r['config_hash']}.json") for r in reversed(first)]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")} == files


def test_a_run_whose_rows_say_how_long_is_found_again(job: Make, tmp_path: Path, trained: list[str]) -> None:
    asked = job(**{"train.steps": None, "train.epochs": 1.5})
    (first,) = run([asked])
    key = asked.name
    assert first["config_hash"] == key
    assert (tmp_path / key / "predictions.jsonl").exists()
    kept = read_json(tmp_path / key / "bara_config.json")["config"]["train"]["steps"]
    assert first["steps"] == first["config"]["train"]["steps"] == kept > 0
    (again,) = run([asked])
    assert again == first
    assert trained == ["lora"]


def test_an_evaluation_that_is_asked_for_later_is_added_without_training(
    job: Make, shifted: str, tmp_path: Path, trained: list[str]
) -> None:
    apart = run([job("bara")])[0]
    assert apart["shifted"] == {}
    later = run([job("bara", shifted=(shifted,))])[0]
    assert trained == ["bara"]
    at_once = run([replace(job("bara", shifted=(shifted,)), folder=tmp_path / "at_once")])[0]
    assert untimed(later) == untimed(at_once)
    assert untimed(apart)["metrics"] == untimed(later)["metrics"]


def untimed(value: object) -> object:
    """Return a record without its wall-clock times."""
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if not k.startswith("wall_clock")}
    return value


def test_a_failing_run_is_recorded_and_does_not_stop_the_others(
    job: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = run([job(**WILD), job()])
    assert "stopped at step 2" in records[0]["failed"]
    assert str(tmp_path) not in records[0]["failed"]
    assert "failed" not in records[1]
    assert load_records(tmp_path / "records") == sorted(records, key=lambda r: r["config_hash"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 done, 1 failed" in printed
    assert "1 failed - lora on colours.jsonl" in printed
    assert "TrainingError" in (tmp_path / records[0]["config_hash"] / "failure.txt").read_text()


def test_something_unexpected_fails_one_run_only(job: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    real = program.build_system

    def broken(config, backbone):
        if config.seed == 0:
            raise ZeroDivisionError("of nothing")
        return real(config, backbone)

    monkeypatch.setattr(program, "build_system", broken)
    records = run([job(), job(seed=1)])
    assert records[0]["failed"] == "ZeroDivisionError: of nothing"
    assert "metrics" in records[1]


def test_failed_runs_are_tried_again_when_asked(
    job: Make, monkeypatch: pytest.MonkeyPatch, trained: list[str], tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(program, "load_backbone", lambda *_, **__: 1 / 0)
        program._loaded.clear()
        assert "ZeroDivisionError" in run([job()])[0]["failed"]
    assert "ZeroDivisionError" in run([job()])[0]["failed"]
    assert trained == []
    again = run([job()], retry_failed=True)[0]
    assert "metrics" in again
    assert not (tmp_path / again["config_hash"] / "failure.txt").exists()
    assert trained == ["lora"]


def test_a_shifted_task_that_fails_leaves_the_run_and_the_other_tasks_alone(
    job: Make, shifted: str, trained: list[str]
) -> None:
    asked = job(shifted=("no-such-task", shifted))
    record = run([asked])[0]
    assert "no-such-task" in record["shifted"]["no-such-task"]["failed"]
    assert record["shifted"]["shifted.jsonl"]["metrics"]
    other = job(shifted=(shifted,))
    assert other.failures(run([other])[0]) == []
    again = run([asked], retry_failed=True)[0]
    assert {**again, "shifted": None} == {**record, "shifted": None}  # the run itself had not failed
    assert trained == ["lora"]


def test_a_lost_process_is_a_failure_of_what_the_run_still_lacked(
    job: Make, shifted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def losing(work, items, workers) -> Iterator[tuple]:
        for item in items:
            yield item, Lost("Its process was killed by signal 9.")

    run([job(seed=1)])
    monkeypatch.setitem(LAUNCHERS, "losing", losing)
    jobs = [job(), job(seed=1, shifted=(shifted,))]
    records = [*sweep(jobs, launcher="losing").values()]
    assert records[0]["failed"] == "Its process was killed by signal 9."
    assert records[1]["metrics"]
    assert records[1]["shifted"]["shifted.jsonl"] == {"failed": "Its process was killed by signal 9."}
    assert records == run(jobs)


def test_a_wrong_setting_stops_the_sweep_before_anything_runs(job: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.learning_rate"):
        run([job(), job(**{"train.learning_rate": 1})])
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_file_in_place_of_a_record_stops_the_sweep(job: Make, tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    job().path.write_text('{"metrics": {}}')
    with pytest.raises(DataError, match="not the record of a run"):
        run([job()])

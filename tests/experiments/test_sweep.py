"""A run is its configuration: done once, shared, gone on with; what fails is recorded and stops nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from study_cases import load_records

from bara_pyro.errors import ConfigError, DataError, TrainingError
from bara_pyro.untrusted.files import read_json
from experiments.engine import sweep as program
from experiments.engine.launchers import LAUNCHERS, Lost
from experiments.engine.sweep import Job, plan, sweep

Make = Callable[..., Job]
# Training breaks at the second step.
WILD = {"train.lr": 1e30}


def run(jobs: list[Job], folder: Path, **options) -> list[dict]:
    return sweep(jobs, folder, launcher="serial", **options)


def test_the_same_configuration_is_the_same_run_however_it_is_written(job: Make, tmp_path: Path) -> None:
    written = [job(), job(seed=0), job(**{"train.batch_size": 4, "train.clip_norm": None}), job(seed=1)]
    hashes, runs = plan(written, tmp_path)
    assert hashes[0] == hashes[1] == hashes[2] != hashes[3]
    assert len(runs) == 2


def test_jobs_that_ask_for_the_same_share_one_run(
    job: Make, shifted: str, tmp_path: Path, trained: list[str]
) -> None:
    records = run([job(), job("bara"), job(shifted=(shifted,))], tmp_path)
    assert sorted(trained) == ["bara", "lora"]
    assert records[0] is records[2]
    assert list(records[0]["shifted"]) == ["shifted.jsonl"]
    assert [r["method"] for r in records] == ["lora", "bara", "lora"]


def test_finished_runs_are_not_redone(job: Make, tmp_path: Path, trained: list[str]) -> None:
    first = run([job(), job(seed=1)], tmp_path)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    again = run([job(seed=1), job()], tmp_path)
    assert trained == ["lora", "lora"]
    assert again == [read_json(tmp_path / "records" / f"{r['config_hash']}.json") for r in reversed(first)]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")} == files


def test_a_run_whose_rows_say_how_long_is_found_again(job: Make, tmp_path: Path, trained: list[str]) -> None:
    asked = job(**{"train.steps": None, "train.epochs": 1.5})
    (first,) = run([asked], tmp_path)
    [key], _ = plan([asked], tmp_path)
    assert first["config_hash"] == key
    assert (tmp_path / key / "predictions.jsonl").exists()
    kept = read_json(tmp_path / key / "bara_config.json")["config"]["train"]["steps"]
    assert first["steps"] == first["config"]["train"]["steps"] == kept > 0
    (again,) = run([asked], tmp_path)
    assert again == first
    assert trained == ["lora"]


def test_an_evaluation_that_is_asked_for_later_is_added_without_training(
    job: Make, shifted: str, tmp_path: Path, trained: list[str]
) -> None:
    apart = run([job("bara")], tmp_path / "apart")[0]
    assert apart["shifted"] == {}
    later = run([job("bara", shifted=(shifted,))], tmp_path / "apart")[0]
    assert trained == ["bara"]
    at_once = run([job("bara", shifted=(shifted,))], tmp_path / "at_once")[0]
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
    records = run([job(**WILD), job()], tmp_path)
    assert "Training stopped at step 2" in records[0]["failed"]
    assert str(tmp_path) not in records[0]["failed"]
    assert "failed" not in records[1]
    assert load_records(tmp_path / "records") == sorted(records, key=lambda r: r["config_hash"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 done, 1 failed" in printed
    assert "Failed (--retry-failed tries them again): - lora on colours.jsonl" in printed
    assert "TrainingError" in (tmp_path / records[0]["config_hash"] / "failure.txt").read_text()


def test_something_unexpected_fails_one_run_only(
    job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = program.build_system

    def broken(config, backbone):
        if config.seed == 0:
            raise ZeroDivisionError("of nothing")
        return real(config, backbone)

    monkeypatch.setattr(program, "build_system", broken)
    records = run([job(), job(seed=1)], tmp_path)
    assert records[0]["failed"] == "ZeroDivisionError: of nothing"
    assert "metrics" in records[1]


def test_failed_runs_are_tried_again_when_asked(
    job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(program, "load_backbone", lambda *_, **__: 1 / 0)
        program._loaded.clear()
        assert "ZeroDivisionError" in run([job()], tmp_path)[0]["failed"]
    assert "ZeroDivisionError" in run([job()], tmp_path)[0]["failed"]
    assert trained == []
    assert "metrics" in run([job()], tmp_path, retry_failed=True)[0]
    assert trained == ["lora"]


def test_a_shifted_task_that_fails_leaves_the_run_and_the_other_tasks_alone(
    job: Make, shifted: str, tmp_path: Path
) -> None:
    asked = job(shifted=("no-such-task", shifted))
    with pytest.raises(TrainingError, match="1 of 1 runs"):
        run([asked], tmp_path, strict=True)
    record = run([asked], tmp_path)[0]
    assert "no-such-task" in record["shifted"]["no-such-task"]["failed"]
    assert record["shifted"]["shifted.jsonl"]["metrics"]
    run([job(shifted=(shifted,))], tmp_path, strict=True)


def test_a_run_evaluated_on_validation_rows_is_not_compared_with_a_shifted_task(
    job: Make, shifted: str, tmp_path: Path
) -> None:
    settings = {"task.evaluate_on": "validation", "task.validation_rows": 8}
    record = run([job(shifted=(shifted,), **settings)], tmp_path)[0]
    assert "task.evaluate_on" in record["shifted"]["shifted.jsonl"]["failed"]


def test_a_lost_process_is_a_failure_of_what_the_run_still_lacked(
    job: Make, shifted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def losing(work, items, workers) -> Iterator[tuple]:
        for item in items:
            yield item, Lost("Its process was killed by signal 9.")

    run([job(seed=1)], tmp_path)
    monkeypatch.setitem(LAUNCHERS, "losing", losing)
    records = sweep([job(), job(seed=1, shifted=(shifted,))], tmp_path, launcher="losing")
    assert records[0]["failed"] == "Its process was killed by signal 9."
    assert records[1]["metrics"]
    assert records[1]["shifted"]["shifted.jsonl"] == {"failed": "Its process was killed by signal 9."}
    assert records == run([job(), job(seed=1, shifted=(shifted,))], tmp_path)


def test_a_wrong_setting_stops_the_sweep_before_anything_runs(job: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.learning_rate"):
        run([job(), job(**{"train.learning_rate": 1})], tmp_path)
    with pytest.raises(ConfigError, match=r"slurm.*serial"):
        sweep([job()], tmp_path, launcher="slurm")
    with pytest.raises(ConfigError, match="workers is 0"):
        run([job()], tmp_path, workers=0)
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_file_in_place_of_a_record_stops_the_sweep(job: Make, tmp_path: Path) -> None:
    hashes, _ = plan([job()], tmp_path)
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / f"{hashes[0]}.json").write_text('{"metrics": {}}')
    with pytest.raises(DataError, match="not the record of a run"):
        run([job()], tmp_path)

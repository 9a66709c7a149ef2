"""The file of an experiment: what is written is what is read, and what is missing is said."""

from pathlib import Path

import pytest
from study_cases import invent

from bara_pyro.errors import DataError
from bara_pyro.runs.atomic import write_json
from bara_pyro.untrusted.files import read_json
from experiments.engine.study import load_study, write_study


def test_arms_tasks_and_seeds_come_back_in_their_order(tmp_path: Path) -> None:
    runs = invent("some", tmp_path, comparisons=[{"arm": "bara"}])
    study = load_study("some", tmp_path)
    assert list(study.arms) == ["lora", "blob", "bara"]
    assert study.tasks == ["micro-wgs", "micro-arce"]
    assert list(study.arms["bara"]["micro-arce"]) == [0, 1, 2]
    for run in runs:
        record = study.arms[run["arm"]][run["task"]][run["seed"]]
        assert record["config_hash"] == run["hash"]
        assert record == read_json(tmp_path / "records" / f"{run['hash']}.json")
    assert study.settings == {"steps": 1000, "seeds": 3}
    assert study.comparisons == [{"arm": "bara"}]
    assert len(study.records) == len(study.finished) == 18


def test_two_arms_may_share_a_run(tmp_path: Path) -> None:
    run = invent("some", tmp_path, arms=["bara"], tasks={"micro-wgs": 20}, seeds=1)[0]
    write_study("other", [run, {**run, "arm": "Gamma(1, 1)"}], {}, folder=tmp_path)
    assert list(load_study("other", tmp_path).arms) == ["bara", "Gamma(1, 1)"]


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    run = invent("some", tmp_path)[0]
    (tmp_path / "records" / f"{run['hash']}.json").unlink()
    with pytest.raises(
        DataError, match=rf"{run['hash']}\.json of some \(lora on micro-wgs, seed 0\)"
    ) as raised:
        load_study("some", tmp_path)
    assert str(raised.value).count(". ") == 0
    assert str(raised.value).endswith("repeat the study.")


def test_a_record_of_another_seed_is_refused(tmp_path: Path) -> None:
    runs = invent("some", tmp_path, seeds=1)
    path = tmp_path / "some.json"
    stored = read_json(path)
    next(iter(stored["entries"].values()))["seed"] = 7
    write_json(path, stored)
    with pytest.raises(DataError, match=f"{runs[0]['hash']}.* as one of seed 7, but it is of seed 0"):
        load_study("some", tmp_path)


def test_runs_that_cannot_be_told_apart(tmp_path: Path) -> None:
    run = {"hash": "a", "arm": "lora", "task": "t", "seed": 0}
    with pytest.raises(DataError, match="'lora' of some has two runs on t with seed 0"):
        write_study("some", [run, {**run, "hash": "b"}], {}, folder=tmp_path)
    with pytest.raises(DataError, match="no 'seed'"):
        write_study("some", [{k: v for k, v in run.items() if k != "seed"}], {}, folder=tmp_path)
    assert not list(tmp_path.iterdir())

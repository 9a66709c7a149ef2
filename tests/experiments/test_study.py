"""The file of an experiment: what is written is what is read, and what is missing is said."""

from pathlib import Path
from typing import Any

import pytest
from study_cases import invent, lines_of, make_record, predictions, records_of

from bara_pyro.errors import DataError
from experiments.engine.record import Record
from experiments.engine.results import changing, load_study, results_path, stored_records, write_study


def test_arms_tasks_and_seeds_come_back_in_their_order(tmp_path: Path) -> None:
    runs = invent("some", tmp_path, comparisons=[{"arm": "bara"}])
    study = load_study("some", tmp_path)
    assert list(study.arms) == ["lora", "blob", "bara"]
    assert study.tasks == ["micro-wgs", "micro-arce"]
    assert list(study.arms["bara"]["micro-arce"]) == [0, 1, 2]
    for run in runs:
        record = study.arms[run["arm"]][run["task"]][run["seed"]]
        assert record["config_hash"] == run["hash"]
        assert record == records_of("some", tmp_path)[run["hash"]]
    assert study.settings == {"steps": 1000, "seeds": 3}
    assert study.comparisons == [{"arm": "bara"}]
    assert len(study.records) == len(study.finished) == 18


def test_two_arms_may_share_a_run(tmp_path: Path) -> None:
    record = made(0)
    run = run_of(record)
    write_study("some", [run, {**run, "arm": "Gamma(1, 1)"}], [record], {}, folder=tmp_path)
    arms = load_study("some", tmp_path).arms
    assert list(arms) == ["bara", "Gamma(1, 1)"]
    assert all(tasks == {"t": {0: record}} for tasks in arms.values())


def made(seed: int) -> Record:
    return make_record("bara", "t", seed, *predictions("bara", "t", seed, 20))


def run_of(record: Record) -> dict[str, Any]:
    return {"hash": record["config_hash"], "arm": "bara", "task": "t", "seed": record["seed"]}


def test_records_stay_while_a_study_of_the_file_names_them(tmp_path: Path) -> None:
    """`real` and `real_few` are of one file: a run of both is there once, until neither has it."""
    records = [made(seed) for seed in range(3)]
    first, second, third = (run_of(record) for record in records)
    write_study("real", [first, second], records[:2], {}, folder=tmp_path)
    write_study("real_few", [second, third], records[1:], {}, folder=tmp_path)
    write_study("other", [first], records[:1], {}, folder=tmp_path)
    assert len(lines_of("real", tmp_path)) == 2 * (1 + 2) + 3  # sets with entries, and records

    def kept() -> list[int]:
        assert records_of("real", tmp_path) == records_of("real_few", tmp_path)
        return sorted(record["seed"] for record in records_of("real", tmp_path).values())

    assert kept() == [0, 1, 2]
    write_study("real", [second], [], {}, folder=tmp_path)  # not given again: what is stored is meant
    assert kept() == [1, 2]
    write_study("real_few", [third], [], {}, folder=tmp_path)
    assert kept() == [1, 2]
    write_study("real", [], [], {}, folder=tmp_path)
    assert kept() == [2]
    assert load_study("real_few", tmp_path).records == records[2:]
    assert load_study("other", tmp_path).records == records[:1]
    assert stored_records(tmp_path) == {record["config_hash"]: record for record in (records[0], records[2])}


def test_the_same_study_is_the_same_bytes(tmp_path: Path) -> None:
    """However it came to be: in which order, with what that is gone."""
    records = [made(seed) for seed in range(3)]
    runs = [run_of(record) for record in records]
    path, kept = results_path("real", tmp_path), []
    for order, given in ((("real", "real_few"), records), (("real_few", "real"), records[::-1])):
        for name in order:
            write_study(name, runs, given, {"steps": 6}, folder=tmp_path)
            write_study(name, runs[:2], records[:2], {"steps": 5}, folder=tmp_path)
        kept.append(path.read_bytes())
        path.unlink()
    assert kept[0] == kept[1]


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    run = invent("some", tmp_path)[0]
    with changing(results_path("some", tmp_path)) as store:
        del store.records[run["hash"]]
    with pytest.raises(DataError, match=rf"{run['hash']} of some \(lora on micro-wgs, seed 0\)") as raised:
        load_study("some", tmp_path)
    assert str(raised.value).count(". ") == 0
    assert str(raised.value).endswith("repeat the study.")


def test_a_record_of_another_seed_is_refused(tmp_path: Path) -> None:
    runs = invent("some", tmp_path, seeds=1)
    with changing(results_path("some", tmp_path)) as store:
        next(iter(store.sets["some"].entries.values()))["seed"] = 7
    with pytest.raises(DataError, match=f"{runs[0]['hash']}.* as one of seed 7, but it is of seed 0"):
        load_study("some", tmp_path)


def test_runs_that_cannot_be_told_apart(tmp_path: Path) -> None:
    run = {"hash": "a", "arm": "lora", "task": "t", "seed": 0}
    with pytest.raises(DataError, match="'lora' of some has two runs on t with seed 0"):
        write_study("some", [run, {**run, "hash": "b"}], [], {}, folder=tmp_path)
    with pytest.raises(DataError, match="no 'seed'"):
        write_study("some", [{k: v for k, v in run.items() if k != "seed"}], [], {}, folder=tmp_path)
    assert not list(tmp_path.iterdir())

"""Stored results: written whole, read back, gone on with; studies of arms and their records."""

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from study_cases import invent, lines_of, make_record, predictions, records_of

from bara_pyro.errors import DataError
from experiments.engine.record import Record
from experiments.engine.results import (
    RESULTS,
    SCHEMA,
    Results,
    changing,
    find_results,
    load_study,
    read_results,
    read_store,
    results_path,
    stored_names,
    study_of,
    write_study,
)


def test_what_is_stored_is_what_the_file_says(tmp_path: Path) -> None:
    compared = [{"arm": "b", "low": float("-inf")}]
    Results("real_few", tmp_path, {"steps": 6}, {"z": {"v": 1}, "a": {"v": 2}}, compared).write()
    assert lines_of("real_few", tmp_path) == [
        {
            "schema": 3,
            "results": "real_few",
            "about": {"steps": 6},
            "comparisons": [{"arm": "b", "low": None}],
        },
        {"results": "real_few", "key": "z", "entry": {"v": 1}},
        {"results": "real_few", "key": "a", "entry": {"v": 2}},
    ]
    found = read_results("real_few", tmp_path)
    assert list(found.entries) == ["z", "a"]  # as they were done
    assert (found.about, found.comparisons) == ({"steps": 6}, [{"arm": "b", "low": None}])
    assert find_results("real", tmp_path) is None
    with pytest.raises(DataError, match=r"real\.jsonl\.gz has no results of 'real': run the study"):
        read_results("real", tmp_path)


@pytest.mark.parametrize(
    ("name", "study"),
    [
        ("real", "real"),
        ("real_few", "real"),
        ("real_rows", "real_rows"),
        ("real_contrast_few", "real_contrast"),
        ("real_contrastive", "real"),
        ("realistic", "realistic"),
        ("confirmatory_again_102", "confirmatory"),
        ("lr_sweep_micro-wgs", "lr_sweep"),
        ("other_split", "other_split"),  # of no study: by itself
    ],
)
def test_the_study_of_results_is_the_longest_that_they_go_on_from(name: str, study: str) -> None:
    assert study_of(name) == study
    assert results_path(name, Path("x")) == Path("x") / f"{study}.jsonl.gz"


def test_each_committed_file_holds_the_results_of_its_study_and_records_that_they_name() -> None:
    stores = {path: read_store(path) for path in RESULTS.glob("*.jsonl.gz")}
    assert len(stores) > 30
    for path, store in stores.items():
        assert {results_path(name) for name in store.sets} == {path}
        named = {entry.get("hash") for found in store.sets.values() for entry in found.entries.values()}
        assert store.records.keys() <= named, path


@pytest.mark.parametrize(
    "lines",
    [
        "[]",
        "no JSON",
        '{"schema": 3',
        f'{{"schema": {SCHEMA}}}',
        '{"schema": 2, "results": "real", "about": {}, "comparisons": []}',
        '{"results": "real", "key": "a", "entry": {}}',  # of no set
        '{"record": {}}',
        '{"record": 5}',
    ],
)
def test_other_files_are_no_results(tmp_path: Path, lines: str) -> None:
    path = results_path("real", tmp_path)
    path.write_bytes(gzip.compress(lines.encode()))
    with pytest.raises(DataError, match=rf"{path} holds no results .*: run the study again\.") as raised:
        read_results("real", tmp_path)
    assert len(str(raised.value)) - len(str(path)) < 150


def test_a_file_that_was_cut_or_is_not_compressed_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    Results("real", tmp_path, {"steps": 6}, {str(i): {"v": i} for i in range(100)}).write()
    path = results_path("real", tmp_path)
    whole = path.read_bytes()
    half = len(whole) // 2
    changed = whole[:half] + bytes([whole[half] ^ 255]) + whole[half + 1 :]
    no_block = whole[:10] + b"\xff" * 20
    for content in (
        whole[:half], whole[:-4], whole[:5], changed, no_block, b"no", gzip.decompress(whole)
    ):  # fmt: skip
        path.write_bytes(content)
        for ask in (
            lambda: read_results("real", tmp_path),
            lambda: Results("real_few", tmp_path, {}).write(),
            lambda: stored_names(tmp_path),
        ):
            with pytest.raises(DataError, match=f"{path} holds no results"):
                ask()
        assert path.read_bytes() == content


def test_what_was_changed_by_halves_is_not_written(tmp_path: Path) -> None:
    Results("real", tmp_path, {}, {"a": {}}).write()
    before = results_path("real", tmp_path).read_bytes()

    def interrupted() -> None:
        with changing(results_path("real", tmp_path)) as store:
            store.sets.clear()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert results_path("real", tmp_path).read_bytes() == before
    Results("real", tmp_path, {}, {"a": {"v": 1}}).write()  # the lock is free


WRITER = """
import sys
from pathlib import Path
from experiments.engine.results import Results
name, folder = sys.argv[1], Path(sys.argv[2])
results = Results(name, folder, {"of": name})
for i in range(20):
    print(flush=True)  # ready
    sys.stdin.readline()
    results.entries[str(i)] = {"v": i}
    results.write()
"""


@pytest.mark.slow
def test_two_processes_that_write_to_one_file_lose_nothing_of_each_other(tmp_path: Path) -> None:
    """In turns that are let go together: each read the file before the other wrote it."""
    names = ("real", "real_few")
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, name, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for name in names
    ]
    try:
        for _ in range(20):
            for writer in writers:
                writer.stdout.readline()
            for writer in writers:
                writer.stdin.write("\n")
                writer.stdin.flush()
        assert [writer.wait() for writer in writers] == [0, 0]
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    for name in names:
        found = read_results(name, tmp_path)
        assert found.about == {"of": name}
        assert {key: entry["v"] for key, entry in found.entries.items()} == {str(i): i for i in range(20)}


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
    assert read_results("some", tmp_path).about == {"steps": 1000, "seeds": 3}
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
    assert kept[0][4:8] == bytes(4)  # where gzip has the time


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    run = invent("some", tmp_path)[0]
    with changing(results_path("some", tmp_path)) as store:
        del store.records[run["hash"]]
    with pytest.raises(DataError, match=rf"{run['hash']} of some \(lora on micro-wgs, seed 0\)") as raised:
        load_study("some", tmp_path)
    assert str(raised.value).count(". ") == 0
    assert str(raised.value).endswith("repeat the study.")


def test_two_runs_of_an_arm_on_one_task_with_one_seed_are_refused(tmp_path: Path) -> None:
    run = {"hash": "a", "arm": "lora", "task": "t", "seed": 0}
    with pytest.raises(DataError, match="An arm of some has two runs"):
        write_study("some", [run, {**run, "hash": "b"}], [], {}, folder=tmp_path)
    assert not list(tmp_path.iterdir())

"""Results that grow are gone on with under the same settings, and never overwritten by others."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from study_cases import lines_of

from bara_pyro.errors import ConfigError, DataError
from experiments.engine.results import (
    RESULTS,
    SCHEMA,
    Results,
    changing,
    find_results,
    having,
    read_results,
    read_store,
    results_path,
    resumed,
    stored_names,
    study_of,
)


def test_goes_on_with_the_same_settings_and_refuses_others(tmp_path: Path) -> None:
    about = {"steps": 10, "taus": [0.1, 1.0]}
    found = resumed("found", tmp_path, about)
    assert (found.name, found.about, found.entries) == ("found", about, {})
    found.add("a", {"arm": "a", "value": 1.5})
    found.add("b", {"arm": "b", "value": 2.5})
    again = resumed("found", tmp_path, about)
    assert again.entries == found.entries
    assert [entry["value"] for entry in having(again.entries.values(), arm="b")] == [2.5]
    assert set(again.entries["a"]["code"]) == {"commit", "dirty", "tree", "lock"}
    with pytest.raises(ConfigError, match="holds results with steps=10, not 20: give another folder"):
        resumed("found", tmp_path, about | {"steps": 20})
    resumed("typed", tmp_path, about | {"set": {"train.lr": 0.1}}).add("a", {})
    with pytest.raises(ConfigError, match=r"holds results with set=\{'train.lr': 0.1\}, not \{\}"):
        resumed("typed", tmp_path, about | {"set": {}})
    resumed("found", tmp_path, about | {"set": {}})  # of before this was kept
    with pytest.raises(ConfigError, match="holds results with rows=None, not 5"):
        resumed("found", tmp_path, about | {"rows": 5})


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
            lambda: resumed("real_few", tmp_path, {}),
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


def test_the_same_results_are_the_same_bytes(tmp_path: Path) -> None:
    """In whatever order the sets of a file were written, and whenever."""
    kept = []
    for order in (("real", "real_few"), ("real_few", "real")):
        for name in order:
            Results(name, tmp_path, {"of": name}, {"b": {"v": 0.1}, "a": {}}).write()
        kept.append(results_path("real", tmp_path).read_bytes())
        results_path("real", tmp_path).unlink()
    assert kept[0] == kept[1]
    assert kept[0][4:8] == bytes(4)  # where gzip has the time


WRITER = """
import sys
from pathlib import Path
from experiments.engine.results import resumed
name, folder = sys.argv[1], Path(sys.argv[2])
results = resumed(name, folder, {"of": name})
for i in range(20):
    print(flush=True)  # ready
    sys.stdin.readline()
    results.add(str(i), {"v": i})
"""


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

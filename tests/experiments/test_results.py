"""Results that grow are gone on with under the same settings, and never overwritten by others."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.runs.store import read_json, write_json
from experiments.engine.convert import converted
from experiments.engine.results import read_results, resumed


def test_goes_on_with_the_same_settings_and_refuses_others(tmp_path: Path) -> None:
    path, about = tmp_path / "found.json", {"steps": 10, "taus": [0.1, 1.0]}
    found = resumed(path, about)
    assert (found.study, found.about, found.entries) == ("found", about, {})
    found.add("a", {"arm": "a", "value": 1.5})
    found.add("b", {"arm": "b", "value": 2.5})
    again = resumed(path, about)
    assert again.entries == found.entries
    assert [entry["value"] for entry in again.having(arm="b")] == [2.5]
    assert set(again.entries["a"]["code"]) == {"commit", "dirty", "tree", "lock"}
    with pytest.raises(ConfigError, match="holds results with steps=10, not 20: give another file"):
        resumed(path, about | {"steps": 20})
    with pytest.raises(ConfigError, match="holds results with rows=None, not 5"):
        resumed(path, about | {"rows": 5})


def test_other_files_are_no_results(tmp_path: Path) -> None:
    for content in ([], {"schema": 1, "rows": []}, {"schema": 2}):
        write_json(tmp_path / "x.json", content)
        with pytest.raises(DataError, match="holds no results of schema 2"):
            read_results(tmp_path / "x.json")


RNG = random.Random(0)
REPORT = {"method": "lora", "metrics": {"10": {"acc": RNG.random()}}, "seed": 3, "schema": 1}
OLD: dict[str, Any] = {
    "arms": {
        "schema": 1,
        "experiment": "arms",
        "settings": {"steps": 17},
        "runs": [{"hash": "ab", "arm": "lora, x", "task": "t", "seed": s} for s in (11, 12)],
        "comparisons": [{"arm": "a", "acc": {"low": RNG.random()}}],
    },
    "other_split": {"runs": {"ab": {"nll": RNG.random()}, "cd": {"nll": RNG.random()}}},
    "programs": {
        "settings": {"draws": 63},
        "environment": {"python": "3.11"},
        "programs": {"phi": {"NUTS": {"sd": [RNG.random()]}, "delta": {"sd": [RNG.random()]}}},
    },
    "keyed": {"about": {"rows": 400}, "entries": {"t 0": {"task": "t", "elpd": RNG.random()}}},
    "listed": {
        "tau": 0.1,
        "entries": [{"method": "m", "r": r, "task": "t", "seed": 0, "phi": RNG.random()} for r in (8, 16)],
    },
    "demo": {"task": "t", "rows": [{"method": "m", "S": s, "acc": RNG.random()} for s in (0, 10)]},
    "costs": {
        f"{size} cpu": {"size": size, "rounds": 20, "methods": {"lora": {"step": RNG.random()}, "x": {"failed": "no"}}}
        for size in ("micro", "896")
    },
    "reports": {
        "lora 0.001 3": {**REPORT, "settings": {"train.lr": 0.001}},
        "bara before 0.001 3": {**REPORT, "settings": {"train.lr": 0.001}},
    },
}  # fmt: skip


def leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    else:
        yield repr(value)


@pytest.mark.parametrize("name", OLD)
def test_old_forms_become_one_without_losing_a_digit(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.json"
    write_json(path, converted(name, OLD[name]))
    found = read_results(path)
    assert found.study == name
    assert all(isinstance(entry, dict) for entry in found.entries.values())
    old, new = Counter(leaves(OLD[name])), Counter(leaves(read_json(path)))
    assert {value for value in old - new if "." in value} == set()


def test_old_reports_know_their_arm() -> None:
    entries = converted("lr", OLD["reports"])["entries"]
    assert [entry["arm"] for entry in entries.values()] == ["lora", "bara before"]


def test_unknown_forms_are_refused() -> None:
    with pytest.raises(DataError, match="not of a form"):
        converted("x", {"a": 1})

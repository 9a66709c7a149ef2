"""Results that grow are gone on with under the same settings, and never overwritten by others."""

from pathlib import Path

import pytest

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.runs.atomic import write_json
from experiments.engine.results import having, read_results, resumed


def test_goes_on_with_the_same_settings_and_refuses_others(tmp_path: Path) -> None:
    path, about = tmp_path / "found.json", {"steps": 10, "taus": [0.1, 1.0]}
    found = resumed(path, about)
    assert (found.study, found.about, found.entries) == ("found", about, {})
    found.add("a", {"arm": "a", "value": 1.5})
    found.add("b", {"arm": "b", "value": 2.5})
    again = resumed(path, about)
    assert again.entries == found.entries
    assert [entry["value"] for entry in having(again.entries.values(), arm="b")] == [2.5]
    assert set(again.entries["a"]["code"]) == {"commit", "dirty", "tree", "lock"}
    with pytest.raises(ConfigError, match="holds results with steps=10, not 20: give another folder"):
        resumed(path, about | {"steps": 20})
    typed = resumed(tmp_path / "typed.json", about | {"set": {"train.lr": 0.1}})
    typed.add("a", {})
    with pytest.raises(ConfigError, match=r"holds results with set=\{'train.lr': 0.1\}, not \{\}"):
        resumed(typed.path, about | {"set": {}})
    resumed(path, about | {"set": {}})  # of before this was kept
    with pytest.raises(ConfigError, match="holds results with rows=None, not 5"):
        resumed(path, about | {"rows": 5})


def test_other_files_are_no_results(tmp_path: Path) -> None:
    for content in ([], {"schema": 1, "rows": []}, {"schema": 2}):
        write_json(tmp_path / "x.json", content)
        with pytest.raises(DataError, match="holds no results of schema 2"):
            read_results(tmp_path / "x.json")

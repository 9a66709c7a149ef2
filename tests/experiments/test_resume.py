"""Results files that grow are gone on with under the same settings, and never overwritten by others."""

from pathlib import Path

import pytest

from bara_pyro.errors import ConfigError
from bara_pyro.runs.store import write_json
from experiments.engine.resume import resumed


def test_goes_on_with_the_same_settings_and_refuses_others(tmp_path: Path) -> None:
    path, about = tmp_path / "found.json", {"steps": 10, "taus": [0.1, 1.0]}
    stored = resumed(path, about, {"entries": {}})
    assert stored == {"about": about, "entries": {}}
    stored["entries"]["a"] = 1
    write_json(path, stored)
    assert resumed(path, about, {"entries": {}}) == stored
    with pytest.raises(ConfigError, match="holds results with steps=10, not 20: give another file"):
        resumed(path, about | {"steps": 20}, {"entries": {}})
    with pytest.raises(ConfigError, match="holds results with rows=None, not 5"):
        resumed(path, about | {"rows": 5}, {"entries": {}})

"""The measurement of costs: what is measured of a method, that it goes on where it stopped, failures."""

from argparse import Namespace
from pathlib import Path

import pytest

from bara_pyro.errors import ConfigError
from benchmarks.systems import Size
from experiments.engine.results import read_results
from experiments.studies.efficiency import study as efficiency

TINY = Size(hidden=16, inner=24, layers=1, heads=2, kv_heads=1, vocabulary=40, rows=2, tokens=8)


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    monkeypatch.setattr(efficiency, "SIZES", {"tiny": TINY})
    monkeypatch.setattr(efficiency, "PREDICTED", 16)
    how = {"device": "cpu", "dtype": "float32", "rounds": 1, "out": tmp_path}
    return Namespace(methods=["bara", "laplace"], **how)


def test_each_method_beside_lora_and_never_twice(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = efficiency.run("tiny", arguments)
    assert list(read_results("efficiency", arguments.out).entries.values()) == entries
    found = {entry["method"]: entry for entry in entries}
    for costs in entries:
        assert min(costs[key] for key in ("step", "point", "draws", "memory")) > 0
        assert min(costs["lora"].values()) > 0
    # A and B of q_proj, v_proj and lm_head at r = 8; BaRA's amortiser has twice LoRA's A, and Phi.
    inputs, outputs = 16 + 16 + 16, 16 + 8 + 40
    assert found["laplace"]["parameters"] == 8 * (inputs + outputs)
    assert found["bara"]["parameters"] == 8 * (2 * inputs + outputs) + 3 * 2 * 8
    arguments.methods.append("lora")
    asked = []
    monkeypatch.setattr(efficiency, "measure", lambda name, *_: asked.append(name) or {"step": 1.0})
    assert efficiency.run("tiny", arguments)[:2] == entries
    assert asked == ["lora"]
    arguments.rounds = 2  # measured otherwise: not to be mixed
    efficiency.run("tiny", arguments)
    assert asked == ["lora", *arguments.methods]


def test_a_failure_is_kept_and_the_rest_goes_on(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = efficiency.contestant

    def broken(name: str, *rest: object) -> efficiency.Contestant:
        if name == "bara":
            raise ConfigError("It does not fit.")
        return real(name, *rest)

    monkeypatch.setattr(efficiency, "contestant", broken)
    found = efficiency.run("tiny", arguments)
    assert [entry.get("failed") for entry in found] == ["It does not fit.", None]
    assert [row["method"] for row in efficiency.ratios(found)] == ["laplace"]

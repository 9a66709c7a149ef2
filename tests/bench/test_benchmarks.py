"""Every benchmark is started, with the smallest sizes that it takes, and writes what it found."""

import json
import math
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bara_pyro as bp

ROOT = Path(__file__).parents[2]
RUN = "RUN"  # stands for the folder of a run
OUT = "found.json"
HELPERS = {"systems", "capture", "trained"}
STARTED_ELSEWHERE = {
    "mutants",
    "mutate",
    "serving",
}  # by tests/test_mutants.py and tests/extras/serve/test_load.py
BENCHMARKS: dict[str, tuple[str, ...]] = {
    "generation": ("--rounds", "1", "--rows", "2", "--prompt", "4", "--new", "2"),
    "speed": ("--steps", "1", "--parts", "step", "prediction", "--methods", "all", "--samples", "2"),
    "last": (RUN, "--rows", "4", "--samples", "2", "--last", "1"),
    "cost": ("upper", "--layers", "2", "--upper", "1", "--tokens", "8"),
    "dtypes": (
        *("--model", "microworld", "--task", "micro-wgs", "--dtypes", "bfloat16"),
        *("--rows", "8", "--steps", "1"),
    ),
    "kernels": (),
    "gpu": (
        *("--size", "micro", "--device", "cpu", "--dtype", "float32"),
        *("--rounds", "1", "--rows", "2", "--parts", "step", "captured", "equality", "training"),
        *("--equality-size", "micro", "--equality-methods", "bara", "ensemble"),
        *("--steps", "24", "--test-rows", "20"),
    ),
}


def start(name: str, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a benchmark in this process, as `python -m benchmarks.NAME` does."""
    if RUN in arguments:
        bp.train(method="bara-gate", steps=1, limit=8, out=tmp_path / RUN)
        arguments = tuple(str(tmp_path / RUN) if one == RUN else one for one in arguments)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of what it starts itself
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *arguments, "--out", str(tmp_path / OUT)])
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")


def test_none_is_left_out() -> None:
    there = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"__init__"}
    assert there == BENCHMARKS.keys() | HELPERS | STARTED_ELSEWHERE


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(name, BENCHMARKS[name], tmp_path, monkeypatch)
    assert capsys.readouterr().out
    found = json.loads((tmp_path / OUT).read_text())
    assert "peft" in json.dumps(found).lower()
    assert all(math.isfinite(number) for number in numbers_of(found))


def numbers_of(found: object) -> Iterator[float]:
    """Every number of a JSON value."""
    if isinstance(found, dict):
        found = [*found.values()]
    for item in found if isinstance(found, list) else ():
        yield from numbers_of(item)
    if isinstance(found, float | int):
        yield found


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_memory_is_compared_at_another_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At r = 64 a module's own activations weigh more than at r = 8, and PEFT's have the same rank."""
    ratios = {}
    for r in ("8", "64"):
        arguments = ("--r", r, "--parts", "memory", "--methods", "additive")
        start("speed", arguments, tmp_path, monkeypatch)
        ratios[r] = json.loads((tmp_path / OUT).read_text())["ratios"]
    assert "step: by hand / peft lora" not in ratios["64"]
    assert (
        ratios["64"]["peak memory: additive / peft lora"] > ratios["8"]["peak memory: additive / peft lora"]
    )

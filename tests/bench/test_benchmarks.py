"""Every benchmark is started, with the smallest sizes that it takes, and writes what it found."""

import json
import math
import runpy
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

import bara_pyro as bp
from benchmarks.systems import size_of

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
    "speed": (
        "--steps",
        "1",
        "--parts",
        "step",
        "prediction",
        "shortcuts",
        "--methods",
        "all",
        "--samples",
        "2",
    ),
    "cost": ("upper", "--layers", "2", "--upper", "1", "--tokens", "8"),
    "dtypes": (
        *("--model", "microworld", "--task", "micro-wgs", "--dtypes", "bfloat16"),
        *("--rows", "8", "--steps", "1"),
    ),
    "scaling": (
        *("--over", "tokens", "--at", "4", "8", "--rounds", "1"),
        *("--methods", "additive", "gate", "blob"),
    ),
    "kernels": (),
    "gpu": (
        *("--size", "micro", "--device", "cpu", "--dtype", "float32"),
        *(
            "--rounds",
            "1",
            "--rows",
            "2",
            "--parts",
            "step",
            "prediction",
            "captured",
            "equality",
            "training",
        ),
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


OVER = {"tokens": 8, "batch": 2, "layers": 2, "r": 4, "vocabulary": 800, "samples": 2}


def flops(call: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("over", OVER)
def test_time_is_measured_over(over: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = OVER[over] // 2, OVER[over]
    arguments = ("--over", over, "--at", *map(str, values), "--rounds", "1", "--methods", "gate")
    start("scaling", arguments, tmp_path, monkeypatch)
    found = json.loads((tmp_path / OUT).read_text())
    a, b = found["seconds"]["gate"]
    slope = math.log2(b / a)  # of a line through two points, one at twice the other
    assert found["exponents"]["gate"] == pytest.approx(slope)
    assert found["ratios"]["gate"][0] == pytest.approx(a / found["seconds"]["peft lora"][0])
    assert f"gate: exponent {slope:.2f}" in (tmp_path / OUT).with_suffix(".svg").read_text()
    contestants, micro = import_module("benchmarks.scaling").contestants, size_of("micro")
    less, more = (flops(contestants(micro, over, value, [])["peft lora"]) for value in values)
    assert less < more < 2.2 * less
    if over in ("batch", "samples"):
        assert more == 2 * less


@pytest.mark.parametrize(("factor", "power"), [(3.0, 1.0), (0.2, 1.7), (5.0, 0.0), (2.0, -0.5)])
def test_the_exponent_is_that_of_made_up_times(
    factor: float, power: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    exponent = import_module("benchmarks.scaling").exponent
    values = (4, 8, 32, 256)
    assert exponent(values, [factor * n**power for n in values]) == pytest.approx(power)
    # Noise is fitted as by the normal equations; a constant cost makes the exponent smaller.
    noisy = [factor * n**power * noise for n, noise in zip(values, (1.1, 0.8, 1.3, 0.9), strict=True)]
    x, y = np.log(values), np.log(noisy)
    assert exponent(values, noisy) == pytest.approx(np.cov(x, y)[0, 1] / np.var(x, ddof=1))
    assert abs(exponent(values, [10 + factor * n**power for n in values])) <= abs(power)


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

"""Part of `benchmarks.gpu`: training runs on the microworld, captured, eager and on a CPU."""

import statistics
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

import bara_pyro as bp
from bara_pyro.runs.system import System
from benchmarks.capture import Figures, attempt

UNCOUNTED = 10  # first steps are not timed: they include recording and loading


class Killed(Exception):
    """Simulates a kill of the training process."""


def training(args: Namespace) -> Iterator[tuple[str, Figures]]:
    """Train the gate form on micro-wgs; compare the runs that must equal the captured run bit for bit."""
    runs: dict[str, System] = {}
    with tempfile.TemporaryDirectory() as place:
        for name, device, capture in (
            ("captured", args.device, "on"),
            ("captured, again", args.device, "on"),
            ("captured, killed and resumed", args.device, "on"),
            ("eager", args.device, "off"),
            ("CPU", "cpu", "off"),
        ):
            settings = {"device": device, "capture": capture, "steps": args.steps, "limit": args.test_rows}
            kill = args.steps // 2 if "killed" in name else None

            def one(name: str = name, settings: Figures = settings, kill: int | None = kill) -> Figures:
                runs[name], found = trained(Path(place) / name.replace(" ", "_"), settings, kill)
                on_it = settings["device"] == args.device
                return found | ({"from captured": apart(runs["captured"], runs[name])} if on_it else {})

            yield name, attempt(one)


def trained(out: Path, settings: Figures, kill: int | None) -> tuple[System, Figures]:
    """Train and evaluate; if `kill` is set, stop after that step and resume from the last checkpoint."""
    times: list[float] = []

    def on_step(step: int, _: dict[str, float]) -> None:
        times.append(time.perf_counter())
        if step == kill and not (out / "killed").exists():
            (out / "killed").touch()
            raise Killed

    every = settings["steps"] // 3  # a kill in the middle loses some steps
    how: dict[str, Any] = settings | {"method": "bara-gate", "calibrated": False, "checkpoint_every": every}
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            run = bp.train(task="micro-wgs", out=out, on_step=on_step, **how)
        except Killed:
            run = bp.train(task="micro-wgs", out=out, on_step=on_step, resume=True, **how)
    seconds = time.perf_counter() - started
    scores = bp.evaluate(run, samples=10)["metrics"]["10"]
    each = [after - before for before, after in zip(times[UNCOUNTED:], times[UNCOUNTED + 1 :], strict=False)]
    return run, {
        "seconds": seconds,
        "ms a step": 1000 * statistics.median(each),
        "nll": scores["nll"],
        "ece": scores["ece"],
        "acc": scores["acc"],
        "said": sorted({str(one.message) for one in said if "eagerly" in str(one.message)}),
    }


def apart(first: System, second: System) -> float:
    """Return the largest difference between parameters of two runs."""
    return max(float((a - b).abs().max()) for a, b in zip(parameters(first), parameters(second), strict=True))


def parameters(run: System) -> list[Tensor]:
    """Return the fitted parameters of program and guide."""
    return [p.detach() for module in (run.model, run.guide) for p in module.parameters()]

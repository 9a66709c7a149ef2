"""Measure training step, prediction and peak memory as ratios of interleaved medians from one run.

python -m benchmarks.speed [--size micro|896|896x24|FOLDER] [--steps 40] [--threads 1] [--parts step memory]
                           [--methods lora additive gate blob] [--r 8] [--samples 10] [--rows 16]
                           [--clock wall|cpu] [--out FILE]

A model from a local Hugging Face folder is loaded in bfloat16; all adapters are in float32, including PEFT's.
`--r` sets the rank of all adapters, PEFT's included. The CPU clock counts only what this process computes.
The part "shortcuts" compares the gate form with all shortcuts of `bara_pyro.fast` to the same without one of
them, in the cases of `CASES`.
"""

import json
import statistics
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdapterOptions
from bara_pyro.fast import SHORTCUTS, Shortcut
from bara_pyro.fast.predictions import replayed
from bara_pyro.fast.replay import Replayed
from bara_pyro.lm.backbone import Backbone
from benchmarks.systems import (
    METHODS,
    RANK,
    Size,
    hand_written,
    inference,
    make_batch,
    make_lm,
    ours,
    peft_lora,
    size_of,
    write,
)

PARTS = ("step", "prediction", "memory")  # by default; "shortcuts" when it is named
DEFAULT = METHODS[:3]


def interleaved(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of each contestant, timed in turn so that drift affects all equally."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + warmup):
        for name, call in contestants.items():
            start = clock()
            call()
            if number >= warmup:
                seconds[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def device_clock(device: str | torch.device) -> Callable[[], float]:
    """Return a clock (in seconds) that waits for a device to finish before it is read."""
    if not str(device).startswith("cuda"):
        return time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


def steps(size_name: str, methods: Sequence[str] = DEFAULT, r: int = RANK) -> dict[str, Callable[[], object]]:
    """Return a training step of each contestant; those of our methods also replayed, from the third on."""
    size = size_of(size_name)
    batch = make_batch(size)
    calls = {"peft lora": peft_lora(size, r=r)[0]}
    if not size.folder and r == RANK:  # only written for float32 and this rank
        calls["by hand"] = hand_written(size)
    calls |= {name: ours(size, name, r=r)[0] for name in methods}
    for name in methods:
        svi = inference(name, Backbone(make_lm(size)), r)
        svi.replayed = Replayed(svi, 0)
        calls[f"{name}, replayed"] = svi.step
    return {name: partial(step, batch) for name, step in calls.items()}


def predictions(
    size_name: str, methods: Sequence[str] = DEFAULT, r: int = RANK, samples: int = 10, rows: int = 16
) -> dict[str, Callable[[], object]]:
    """Return S draws of each method that has them, eager and replayed, and S forwards of PEFT's LoRA."""
    size = size_of(size_name)
    batch = make_batch(size, rows)
    forward = peft_lora(size, r=r)[1]
    calls: dict[str, Callable[[], object]] = {
        f"{samples} peft lora forwards": lambda: [forward(batch) for _ in range(samples)]
    }
    for name in methods:
        if name != "lora":
            calls[f"{name}, S = {samples}"] = partial(ours(size, name, r=r)[1], batch, samples)
            svi = inference(name, Backbone(make_lm(size)), r)
            replayed(svi.model, svi.guide, after=0)
            call = partial(predict, svi.model, svi.guide, batch, samples=samples)
            calls[f"{name}, S = {samples}, replayed"] = call
    return calls


class Case(NamedTuple):
    """A training step or a prediction, and the shortcuts that it takes.

    Attributes:
        off: the shortcuts that are left out, one at a time.
        samples: number of draws; None for a training step.
        layers: adapted layers: all, the upper quarter, or only the output embedding.
        alike: 16 rows or more, of which the first half is the same.
    """

    off: tuple[Shortcut, ...]
    samples: int | None
    layers: str = "all"
    alike: bool = False


CASES = {
    "step": Case(("answer_rows",), None),
    "step, upper quarter": Case(("frozen_layers", "answer_rows"), None, "upper"),
    "step, head": Case(("frozen_layers", "answer_rows"), None, "head"),
    "S = 10": Case(("last_layer", "answer_rows", "batched_draws"), 10),
    "S = 10, upper quarter": Case(("frozen_layers", "last_layer", "answer_rows"), 10, "upper"),
    "S = 10, head": Case(("frozen_layers", "answer_rows", "batched_draws"), 10, "head"),
    "S = 0, rows begin alike": Case(("prefixes",), 0, alike=True),
}


def without(case: Case, size: Size, backbone: Backbone, rows: int) -> dict[str, Callable[[], object]]:
    """Return a case with all shortcuts, and without each of those that it takes."""
    options: dict[str, AdapterOptions] = {
        "all": {},
        "upper": {"top_layers": max(1, size.layers // 4)},
        "head": {"target_modules": ["lm_head"]},
    }
    if case.alike:
        rows = max(rows, 16)
    batch = make_batch(size, None if case.samples is None else rows)
    if case.alike:
        ids = batch.input_ids.clone()
        ids[:, : size.tokens // 2] = ids[0, : size.tokens // 2]
        batch = replace(batch, input_ids=ids, attention_mask=batch.attention_mask | True)

    def contestant(on: frozenset[str]) -> Callable[[], object]:
        backbone.shortcuts = on
        svi = inference("gate", backbone, adapter=options[case.layers])

        def call() -> None:
            backbone.shortcuts = on
            if case.samples is None:
                svi.step(batch)
            else:
                predict(svi.model, svi.guide, batch, samples=case.samples)

        return call

    every = frozenset(SHORTCUTS)
    return {"all on": contestant(every)} | {name: contestant(every - {name}) for name in case.off}


def shortcuts(
    size_name: str, rounds: int, rows: int, clock: Callable[[], float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return seconds by "CASE: SHORTCUT", the one that is off, and their ratios to all shortcuts on."""
    size = size_of(size_name)
    backbone = Backbone(make_lm(size))
    seconds: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for name, case in CASES.items():
        times = rounds if case.samples is None else max(3, rounds // 8)
        found = interleaved(without(case, size, backbone, rows), times, warmup=1, clock=clock)
        seconds |= {f"{name}: {off}": value for off, value in found.items()}
        ratios |= {f"{name}: without {off} / all on": found[off] / found["all on"] for off in case.off}
    return seconds, ratios


def ratios_of(part: str, found: Mapping[str, float]) -> dict[str, float]:
    """Return the ratio of every contestant to the first, PEFT's LoRA, by "PART: CONTESTANT / FIRST"."""
    first = next(iter(found), "")
    return {f"{part}: {name} / {first}": found[name] / found[first] for name in found if name != first}


def peak_memory(call: Callable[[], object]) -> float:
    """Return the additional MiB at the peak of the third call on the CPU.

    Weights, optimizer state and imports are excluded, because they do not grow with the batch.
    """
    call()
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e["name"] == "[memory]")
    return max(accumulate(number for _, number in changes)) / 2**20


def peak_of_gpu(call: Callable[[], object]) -> float:
    """Return the additional MiB at the peak of a second call on the GPU."""
    call()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def main() -> None:
    """Measure and print."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="micro", help="micro, 896, 896x24, or a local Hugging Face folder")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--parts", nargs="+", choices=(*PARTS, "shortcuts"), default=PARTS)
    parser.add_argument("--methods", nargs="+", choices=("all", *METHODS), default=DEFAULT)
    parser.add_argument("--r", type=int, default=RANK, help="rank of all adapters; default: %(default)s")
    parser.add_argument("--samples", type=int, default=10, help="number S of draws; default: %(default)s")
    parser.add_argument("--rows", type=int, default=16, help="rows of a prediction; default: %(default)s")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    methods = METHODS if "all" in args.methods else args.methods
    t: dict[str, float] = {}
    p: dict[str, float] = {}
    s: dict[str, float] = {}
    m: dict[str, float] = {}
    if "step" in args.parts:
        t = interleaved(steps(args.size, methods, args.r), args.steps, clock=clock)
    if "prediction" in args.parts:
        calls = predictions(args.size, methods, args.r, args.samples, args.rows)
        p = interleaved(calls, max(3, args.steps // 8), warmup=3, clock=clock)
    if "memory" in args.parts:
        m = {name: peak_memory(step) for name, step in steps(args.size, methods, args.r).items()}
    ratios = ratios_of("step", t) | ratios_of("prediction", p) | ratios_of("peak memory", m)
    if "shortcuts" in args.parts:
        s, off = shortcuts(args.size, args.steps, args.rows, clock)
        ratios |= off
    if {"by hand", "additive"} <= t.keys():
        ratios["step: additive / by hand"] = t["additive"] / t["by hand"]
    for name, seconds in {**t, **p, **s}.items():
        print(f"{name:<24} {1000 * seconds:9.1f} ms")
    for name, ratio in ratios.items():
        print(f"{name:<54} {ratio:6.3f}")
    write(args.out, {"size": args.size, "r": args.r, "seconds": t | p | s, "mib": m, "ratios": ratios})


if __name__ == "__main__":
    main()

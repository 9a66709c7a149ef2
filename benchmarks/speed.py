"""Measure training step, prediction and peak memory as ratios of interleaved medians from one run.

python -m benchmarks.speed [--size micro|896|FOLDER] [--steps 40] [--threads 1] [--parts step memory]
                           [--methods lora additive gate blob] [--r 8] [--samples 10]
                           [--clock wall|cpu] [--out FILE]

A model from a local Hugging Face folder is loaded in bfloat16; all adapters are in float32, including PEFT's.
`--r` sets the rank of all adapters, PEFT's included. The CPU clock counts only what this process computes.
"""

import json
import statistics
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.systems import (
    METHODS,
    RANK,
    hand_written,
    make_batch,
    ours,
    peft_lora,
    size_of,
    write,
)

PARTS = ("step", "prediction", "memory")
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
    """Return a training step of each contestant."""
    size = size_of(size_name)
    batch = make_batch(size)
    calls = {"peft lora": peft_lora(size, r=r)[0]}
    if not size.folder and r == RANK:  # only written for float32 and this rank
        calls["by hand"] = hand_written(size)
    calls |= {name: ours(size, name, r=r)[0] for name in methods}
    return {name: partial(step, batch) for name, step in calls.items()}


def predictions(
    size_name: str, methods: Sequence[str] = DEFAULT, r: int = RANK, samples: int = 10
) -> dict[str, Callable[[], object]]:
    """Return S draws for 16 rows of each method that has draws, and S forward passes of PEFT's LoRA."""
    size = size_of(size_name)
    batch = make_batch(size, rows=16)
    forward = peft_lora(size, r=r)[1]
    calls: dict[str, Callable[[], object]] = {
        f"{samples} peft lora forwards": lambda: [forward(batch) for _ in range(samples)]
    }
    for name in methods:
        if name != "lora":
            calls[f"{name}, S = {samples}"] = partial(ours(size, name, r=r)[1], batch, samples)
    return calls


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
    parser.add_argument("--size", default="micro", help="micro, 896, or a local Hugging Face folder")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--methods", nargs="+", choices=("all", *METHODS), default=DEFAULT)
    parser.add_argument("--r", type=int, default=RANK, help="rank of all adapters; default: %(default)s")
    parser.add_argument("--samples", type=int, default=10, help="number S of draws; default: %(default)s")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    methods = METHODS if "all" in args.methods else args.methods
    t: dict[str, float] = {}
    p: dict[str, float] = {}
    m: dict[str, float] = {}
    if "step" in args.parts:
        t = interleaved(steps(args.size, methods, args.r), args.steps, clock=clock)
    if "prediction" in args.parts:
        calls = predictions(args.size, methods, args.r, args.samples)
        p = interleaved(calls, max(3, args.steps // 8), warmup=1, clock=clock)
    if "memory" in args.parts:
        m = {name: peak_memory(step) for name, step in steps(args.size, methods, args.r).items()}
    ratios = ratios_of("step", t) | ratios_of("prediction", p) | ratios_of("peak memory", m)
    if {"by hand", "additive"} <= t.keys():
        ratios["step: additive / by hand"] = t["additive"] / t["by hand"]
    for name, seconds in {**t, **p}.items():
        print(f"{name:<24} {1000 * seconds:9.1f} ms")
    for name, ratio in ratios.items():
        print(f"{name:<54} {ratio:6.3f}")
    write(args.out, {"size": args.size, "r": args.r, "seconds": t | p, "mib": m, "ratios": ratios})


if __name__ == "__main__":
    main()

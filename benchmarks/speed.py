"""Measure training step, prediction and peak memory as ratios of interleaved medians from one run.

python -m benchmarks.speed [--size micro|896|FOLDER] [--steps 40] [--threads 1] [--parts step memory]
                           [--clock wall|cpu] [--out FILE]

A model from a local Hugging Face folder is loaded in bfloat16; all adapters are in float32, including PEFT's.
The CPU clock counts only the computation of this process.
"""

import json
import statistics
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.systems import hand_written, make_batch, ours, peft_lora, size_of

PARTS = ("step", "prediction", "memory")


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


def steps(size_name: str) -> dict[str, Callable[[], object]]:
    """Return a training step of each contestant."""
    size = size_of(size_name)
    batch = make_batch(size)
    calls = {"peft lora": peft_lora(size)[0]}
    if not size.folder:  # only written for float32
        calls["by hand"] = hand_written(size)
    calls |= {name: ours(size, name)[0] for name in ("lora", "additive", "gate")}
    return {name: partial(step, batch) for name, step in calls.items()}


def predictions(
    size_name: str, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Time predictions of 16 rows with S = 10 against ten forward passes of PEFT's LoRA."""
    size = size_of(size_name)
    batch = make_batch(size, rows=16)
    forward = peft_lora(size)[1]
    predict = ours(size, "additive")[1]
    return interleaved(
        {
            "10 peft lora forwards": lambda: [forward(batch) for _ in range(10)],
            "S = 10": lambda: predict(batch, 10),
        },
        rounds,
        warmup=1,
        clock=clock,
    )


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
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    t: dict[str, float] = {}
    p: dict[str, float] = {}
    m: dict[str, float] = {}
    ratios: dict[str, float] = {}
    if "step" in args.parts:
        t = interleaved(steps(args.size), args.steps, clock=clock)
        ratios |= {f"step: {who} / peft lora": t[who] / t["peft lora"] for who in t if who != "peft lora"}
    if "by hand" in t:
        ratios["step: additive / by hand"] = t["additive"] / t["by hand"]
    if "prediction" in args.parts:
        p = predictions(args.size, max(3, args.steps // 8), clock)
        ratios["prediction: S = 10 / 10 peft lora forwards"] = p["S = 10"] / p["10 peft lora forwards"]
    if "memory" in args.parts:
        m = {name: peak_memory(step) for name, step in steps(args.size).items()}
        ratios |= {
            f"peak memory: {who} / peft lora": m[who] / m["peft lora"] for who in m if who != "peft lora"
        }
    for name, seconds in {**t, **p}.items():
        print(f"{name:<24} {1000 * seconds:9.1f} ms")
    for name, ratio in ratios.items():
        print(f"{name:<46} {ratio:6.3f}")
    if args.out:
        args.out.write_text(
            json.dumps({"size": args.size, "seconds": t | p, "mib": m, "ratios": ratios}, indent=1)
        )


if __name__ == "__main__":
    main()

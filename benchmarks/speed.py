"""Training step, prediction and peak memory as ratios, measured in one run, interleaved, as medians.

python -m benchmarks.speed [--size micro|896] [--steps 40] [--threads 1] [--out FILE]
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from benchmarks.systems import SIZES, hand_written, make_batch, ours, peft_lora


def interleaved(
    contestants: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 3
) -> dict[str, float]:
    """Return the median seconds of each contestant, timed in turn so that drift hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + warmup):
        for name, call in contestants.items():
            start = time.perf_counter()
            call()
            if number >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def steps(size_name: str, rounds: int) -> dict[str, float]:
    """Time a training step of each contestant."""
    size = SIZES[size_name]
    batch = make_batch(size)
    calls = {"peft lora": peft_lora(size)[0], "by hand": hand_written(size)}
    calls |= {name: ours(size, name)[0] for name in ("lora", "additive", "gate")}
    return interleaved({name: lambda step=step: step(batch) for name, step in calls.items()}, rounds)


def predictions(size_name: str, rounds: int) -> dict[str, float]:
    """Time S = 10 predictions of 16 rows against ten forwards of PEFT's LoRA."""
    size = SIZES[size_name]
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
    )


def memory(size_name: str, who: str) -> float:
    """Return the peak resident memory of ten training steps, in MiB (in this process)."""
    size = SIZES[size_name]
    step = peft_lora(size)[0] if who == "peft lora" else ours(size, who)[0]
    batch = make_batch(size)
    for _ in range(10):
        step(batch)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _memory_apart(size: str, who: str) -> float:
    command = [sys.executable, "-m", "benchmarks.speed", "--size", size, "--memory-of", who]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="micro")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory_of:
        print(memory(args.size, args.memory_of))
        return
    t = steps(args.size, args.steps)
    p = predictions(args.size, max(3, args.steps // 8))
    m = {who: _memory_apart(args.size, who) for who in ("peft lora", "lora", "additive", "gate")}
    ratios = {
        **{f"step: {who} / peft lora": t[who] / t["peft lora"] for who in ("lora", "additive", "gate")},
        "step: additive / by hand": t["additive"] / t["by hand"],
        "prediction: S = 10 / 10 peft lora forwards": p["S = 10"] / p["10 peft lora forwards"],
        **{
            f"peak memory: {who} / peft lora": m[who] / m["peft lora"] for who in ("lora", "additive", "gate")
        },
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

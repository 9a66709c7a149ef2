"""Measure how CPU time grows with one dimension, and fit a power law to it.

python -m benchmarks.scaling --over tokens|batch|layers|r|vocabulary|samples [--at 32 64 128]
                             [--size micro|896] [--methods additive gate blob] [--rounds 10] [--out FILE]

Times are of a training step; over "samples" of S draws for 16 rows, against S forward passes of PEFT's LoRA.
Everything else stays as in --size. All values and contestants take turns in one run. The exponent p of
time ~ value^p is the slope of a straight line through the logarithms, by least squares: work that does not
grow with the dimension makes it smaller. The last line has the exponents of the times, not of the ratios.
--out writes the figures as JSON, and a plot beside it as SVG.
"""

import math
import statistics
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from bara_pyro.lm.backbone import Backbone
from bara_pyro.report.style import dress, legend_of, line_style, new_figure, svg_file
from benchmarks.speed import interleaved
from benchmarks.systems import METHODS, RANK, SIZES, Size, make_batch, make_lm, ours, peft_lora, write

PEFT = "peft lora"
VALUES = {
    "tokens": (32, 64, 128, 256, 512),
    "batch": (1, 2, 4, 8, 16),
    "layers": (1, 2, 4, 8, 16),
    "r": (4, 8, 16, 32, 64, 128),
    "vocabulary": (400, 1600, 6400, 25600),
    "samples": (1, 2, 5, 10, 20),
}
FIELDS = {"tokens": "tokens", "batch": "rows", "layers": "layers", "vocabulary": "vocabulary"}
Call = Callable[[], object]


def exponent(values: Sequence[float], seconds: Sequence[float]) -> float:
    """Return p of the power law `seconds ~ values^p`, fitted to the logarithms by least squares."""
    return statistics.linear_regression(list(map(math.log, values)), list(map(math.log, seconds))).slope


def contestants(size: Size, over: str, value: int, methods: Sequence[str]) -> dict[str, Call]:
    """Return the calls to time at one value: PEFT's LoRA and the methods of this library."""
    changed: dict[str, Any] = {FIELDS[over]: value} if over in FIELDS else {}
    size = replace(size, **changed)
    r = value if over == "r" else RANK
    step, forward, _ = peft_lora(size, r=r)
    backbone = Backbone(make_lm(size))  # for all methods in turn
    pairs = {name: ours(size, name, backbone, r=r) for name in methods}
    if over == "samples":
        rows = make_batch(size, rows=16)
        calls: dict[str, Call] = {PEFT: lambda: [forward(rows) for _ in range(value)]}
        return calls | {name: partial(own[1], rows, value) for name, own in pairs.items()}
    batch = make_batch(size)
    calls = {PEFT: partial(step, batch)}
    return calls | {name: partial(own[0], batch) for name, own in pairs.items()}


def measured(args: Namespace) -> dict[str, list[float]]:
    """Return the median CPU seconds of each contestant, one for each value."""
    calls = {
        f"{name} {value}": call
        for value in args.at
        for name, call in contestants(SIZES[args.size], args.over, value, args.methods).items()
    }
    found = interleaved(calls, args.rounds, warmup=2, clock=time.process_time)
    return {name: [found[f"{name} {value}"] for value in args.at] for name in (PEFT, *args.methods)}


def drawn(over: str, values: Sequence[int], seconds: dict[str, list[float]]) -> Figure:
    """Plot the times on logarithmic axes, with each contestant's exponent in the legend."""
    figure = new_figure(4.8, 3.6)
    axes = figure.add_subplot()
    for index, (name, own) in enumerate(seconds.items()):
        label = f"{name}: exponent {exponent(values, own):.2f}"
        axes.plot(values, [1000 * one for one in own], marker="o", label=label, **line_style(index))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(values, [str(value) for value in values])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter("{x:g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    dress(axes, over, "CPU time of " + ("a prediction" if over == "samples" else "a step") + " (ms)")
    legend_of(axes)
    return figure


def main() -> None:
    """Measure, print and write."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--over", choices=VALUES, required=True)
    parser.add_argument("--at", type=int, nargs="+", help="values, instead of the usual ones")
    parser.add_argument("--size", choices=("micro", "896"), default="micro")
    parser.add_argument("--methods", nargs="+", choices=METHODS[1:], default=METHODS[1:3])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, metavar="FILE")
    args = parser.parse_args()
    args.at = args.at or VALUES[args.over]
    if len(set(args.at)) < 2 or min(args.at) < 1:
        parser.error(f"--at needs at least two different values above 0, got {args.at}")
    torch.set_num_threads(1)
    seconds = measured(args)
    ratios = {
        name: [a / b for a, b in zip(seconds[name], seconds[PEFT], strict=True)] for name in args.methods
    }
    exponents = {name: exponent(args.at, own) for name, own in seconds.items()}
    print(f"{args.over:<12}{f'{PEFT}, ms':>16}" + "".join(f"{f'{name} / peft':>18}" for name in ratios))
    for place, value in enumerate(args.at):
        line = "".join(f"{ratio[place]:18.2f}" for ratio in ratios.values())
        print(f"{value:<12}{1000 * seconds[PEFT][place]:16.2f}{line}")
    first, *others = exponents.values()
    print(f"{'exponent':<12}{first:16.2f}" + "".join(f"{p:18.2f}" for p in others))
    found = {"over": args.over, "size": args.size, "values": [*args.at], "seconds": seconds}
    write(args.out, {**found, "ratios": ratios, "exponents": exponents})
    if args.out:
        alt = ", ".join(f"{name} {p:.2f}" for name, p in exponents.items())
        figure = svg_file(drawn(args.over, args.at, seconds), f"CPU time over {args.over}; exponents: {alt}")
        args.out.with_suffix(".svg").write_text(figure, encoding="utf-8")


if __name__ == "__main__":
    main()

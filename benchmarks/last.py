"""Compare draws in only the last K tokens with draws in all tokens and none: time, and NLL on test rows.

python -m benchmarks.last RUN [--rows 200] [--samples 10] [--last 1 4 16] [--out FILE]

Times are ratios of CPU time to draws in all tokens. Differences in NLL are paired by row and have a standard
error. The frozen layers below the adapters run before the timing starts. S forward passes of PEFT's LoRA,
untrained, of the same rank and on the same modules, are timed as well.
"""

import copy
import math
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from bara_pyro.data import EncodedSplit, batches, first_rows
from bara_pyro.metrics import posterior_predictive
from bara_pyro.metrics.scores import nll_per_example
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import System
from benchmarks.systems import peft_lora, write


def timed(system: System, split: EncodedSplit, samples: int, last: int | None) -> tuple[float, Tensor]:
    """Return the CPU seconds of a prediction and the NLL of each row, in nats."""
    config = load_config(overrides={"predict.last": last}, base=system.config)
    started = time.process_time()
    drawn = draw(replace(system, config=config), split, samples)
    seconds = time.process_time() - started
    return seconds, nll_per_example(posterior_predictive(drawn), torch.tensor(split.labels))


def peft_seconds(system: System, split: EncodedSplit, samples: int) -> float:
    """Return the CPU seconds of as many forward passes of PEFT's LoRA over the rows."""
    paths = [target.path for target in system.model.targets]
    forward = peft_lora(copy.deepcopy(system.backbone.lm), r=system.model.r, targets=paths)[1]
    started = time.process_time()
    for batch in batches(split, system.answer_ids, system.config.predict.batch_size):
        for _ in range(samples):
            forward(batch.to(system.backbone.device))
    return time.process_time() - started


def main() -> None:
    """Measure and print."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run with local gates")
    parser.add_argument("--rows", type=int, default=200, help="number of test rows; default: %(default)s")
    parser.add_argument("--samples", type=int, default=10, help="number S of draws; default: %(default)s")
    parser.add_argument("--last", type=int, nargs="+", default=[1, 4, 16], metavar="K")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    system = load_system(args.run)
    split = first_rows(system.split("test"), args.rows)
    timed(system, split, 0, None)
    full, costs = timed(system, split, args.samples, None)
    print(f"{len(split)} rows, S = {args.samples}: NLL {costs.mean():.3f}")
    print(f"{'draws in':<12}{'time':>8}{'NLL':>8}{'NLL minus all':>20}{'SE':>8}")
    found = {"all": {"time": 1.0, "nll": float(costs.mean())}}
    kinds = [(f"the last {k}", args.samples, k) for k in args.last] + [("none (S = 0)", 0, None)]
    for name, samples, last in kinds:
        seconds, own = timed(system, split, samples, last)
        difference = own - costs
        error = difference.std() / math.sqrt(len(split))
        print(
            f"{name:<12}{seconds / full:8.2f}{own.mean():8.3f}{difference.mean():+20.3f}{error:8.3f}",
            flush=True,
        )
        found[name] = {
            "time": seconds / full,
            "nll": float(own.mean()),
            "difference": float(difference.mean()),
            "error": float(error),
        }
    found["peft lora"] = {"time": peft_seconds(system, split, args.samples) / full}
    print(f"{'PEFT LoRA':<12}{found['peft lora']['time']:8.2f}")
    write(args.out, {"run": args.run.name, "rows": len(split), "samples": args.samples, "found": found})


if __name__ == "__main__":
    main()

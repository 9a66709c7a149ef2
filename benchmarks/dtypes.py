"""Compare types of frozen weights: size, time of a training step, and NLL before and after training.

python -m benchmarks.dtypes --model FOLDER --task ag_news [--data-dir FOLDER] [--dtypes bfloat16 int8 int4]
                            [--out FILE]

A step of PEFT's LoRA on the same modules and batches is timed in turn, on weights that are not quantized.
"""

import json
import math
import statistics
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from bara_pyro.data import EncodedSplit, training_batches
from bara_pyro.data.types import Batch
from bara_pyro.lm.loading import load_backbone
from bara_pyro.metrics.scores import nll_per_example
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.steps import make_svi
from bara_pyro.runs.system import System, build_system
from benchmarks.systems import peft_lora, write


def stored_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's weights: tied weights once, with the scales of quantized ones."""
    parts: list[Tensor] = []
    for value in model.state_dict().values():
        parts += [value.qdata, value.scale] if hasattr(value, "qdata") else [value]
    return sum({part.data_ptr(): part.numel() * part.element_size() for part in parts}.values())


def nll(system: System, split: EncodedSplit) -> tuple[float, float]:
    """Return the mean NLL of a split at the posterior mean in nats, and its standard error."""
    costs = nll_per_example(draw(system, split, 0)[0], torch.tensor(split.labels))
    return float(costs.mean()), float(costs.std()) / math.sqrt(len(split))


def peft_step(system: System, model: str) -> Callable[[Batch], object]:
    """Return a training step of PEFT's LoRA, on a copy of the weights of its own."""
    dtype = str(system.backbone.dtype).removeprefix("torch.")
    lm = load_backbone(model, dtype=dtype, device=str(system.backbone.device)).lm
    paths = [target.path for target in system.model.targets]
    return peft_lora(lm, r=system.model.r, targets=paths)[0]


def measured(dtype: str, args: Namespace) -> dict[str, float]:
    """Train with frozen weights of one type and return the measurements."""
    where = {"backbone.name": args.model, "task.name": args.task, "task.data_dir": args.data_dir}
    sizes = {"task.limit": args.rows, "train.steps": args.steps, "method.name": args.method}
    system = build_system(load_config(overrides={"backbone.dtype": dtype, **where, **sizes}))
    split, test, svi = system.split("train"), system.split("test"), make_svi(system)
    found = dict(zip(("nll_before", "error_before"), nll(system, test), strict=True))
    torch.manual_seed(0)
    calls = {"step_s": svi.step, "peft_step_s": peft_step(system, args.model)}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for step in range(args.steps):
        batch = split.batch(training_batches(len(split), 4, seed=0, step=step), system.answer_ids)
        for name, call in calls.items():
            start = time.perf_counter()
            call(batch)
            seconds[name].append(time.perf_counter() - start)
    found |= dict(zip(("nll_after", "error_after"), nll(system, test), strict=True))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["step_s"] / medians["peft_step_s"]
    return {"MB": stored_bytes(system.backbone.lm) / 1e6, **found, **medians, "step / peft lora": ratio}


def main() -> None:
    """Print a line of JSON for each type, and write all of them."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, help="a Hugging Face folder or a hub name")
    add("--task", default="ag_news", help="default: %(default)s")
    add("--data-dir", help="local rows, instead of the hub")
    add("--dtypes", nargs="+", default=["bfloat16", "int8", "int4"], help="default: %(default)s")
    add("--method", default="lora", help="default: %(default)s")
    add("--rows", type=int, default=200, help="of each split; default: %(default)s")
    add("--steps", type=int, default=60, help="of 4 rows; default: %(default)s")
    add("--out", type=Path)
    args = parser.parse_args()
    found = {}
    for dtype in args.dtypes:
        found[dtype] = measured(dtype, args)
        print(json.dumps({"dtype": dtype, **found[dtype]}), flush=True)
    write(args.out, {"model": args.model, "task": args.task, "method": args.method, "found": found})


if __name__ == "__main__":
    main()

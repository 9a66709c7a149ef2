"""Count the kernels of a training step (ATen calls that are not views) by the part that calls them.

python -m benchmarks.kernels [--size micro|896|FOLDER] [--out FILE]

The count has no noise and is close to the number of kernels that a GPU launches. It includes every call below
autograd in forward pass, backward pass and optimizer, except views and allocations. "Extra a module" is the
number beyond a step of PEFT's LoRA on the same backbone, divided by the number of adapted modules.

A kernel belongs to the part whose code called it, a kernel of the backward pass to the part whose forward
pass created its node. PEFT calls the adapted layer from the adapter, so its matrix products count as the
adapter's there and as the language model's here.
"""

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bara_pyro.lm.targets import find_targets
from benchmarks.systems import make_batch, make_lm, ours, peft_lora, size_of

METHODS = ("lora", "additive", "gate")
# Calls that are not views by their schema but run nothing on a device.
FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"}
# Part of the path of a file -> part of the step. The innermost file of the stack that matches counts.
PARTS = (
    ("/torch/optim/", "optimiser"),
    ("/transformers/", "language model"),
    ("/bara_pyro/lm/backbone", "language model"),
    ("/peft/tuners/", "adapter"),
    ("/bara_pyro/models/", "adapter"),
    ("/bara_pyro/core/program", "adapter"),
    ("/bara_pyro/guides/", "posterior and draw"),
    ("/core/distributions/weibull", "posterior and draw"),
    ("/core/distributions/", "bound"),
    ("/bara_pyro/core/elbo", "bound"),
    ("/bara_pyro/core/likelihood", "bound"),
    ("/benchmarks/systems", "bound"),  # PEFT's step: the cross-entropy
    ("/bara_pyro/core/svi", "gradient norm, log"),
)
BACKWARD = " (backward)"


class Kernels(TorchDispatchMode):
    """Counts the calls in a block by part of the step and name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Count a call and run it."""
        name = func._schema.name.removeprefix("aten::")
        if func.namespace == "aten" and not func.is_view and name not in FREE:
            self.calls[_part(), name] += 1
        return func(*args, **(kwargs or {}))

    @property
    def parts(self) -> Counter[str]:
        """The number of calls of each part."""
        out: Counter[str] = Counter()
        for (part, _), number in self.calls.items():
            out[part] += number
        return out


def _part() -> str:
    node = torch._C._current_autograd_node()
    if node is None:
        return _named(_files_of_the_stack())  # type: ignore[unreachable]  # torch says it is never None
    # Anomaly mode keeps the stack of the node's forward pass, as lines formatted by `traceback`.
    made = cast(dict[str, list[str]], node.metadata).get("traceback_", [])
    return _named(line.partition('"')[2].partition('"')[0] for line in reversed(made)) + BACKWARD


def _files_of_the_stack() -> Iterable[str]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _named(files: Iterable[str]) -> str:
    for file in files:
        for fragment, part in PARTS:
            if fragment in file:
                return part
    return "rest"


def count(step: Callable[[], object]) -> Kernels:
    """Return the kernels of the third call of a step; the first two create the optimizer's state."""
    step()
    step()
    with torch.autograd.set_detect_anomaly(True, check_nan=False), Kernels() as kernels:
        step()
    return kernels


def measure(size_name: str) -> dict[str, Kernels]:
    """Return the kernels of a training step of PEFT's LoRA and of our methods."""
    size = size_of(size_name)
    batch = make_batch(size)
    out = {}
    for name in ("peft lora", *METHODS):
        step = peft_lora(size)[0] if name == "peft lora" else ours(size, name)[0]
        out[name] = count(lambda step=step: step(batch))  # type: ignore[misc]
    return out


def main() -> None:
    """Count and print."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="micro", help="micro, 896, or a local Hugging Face folder")
    parser.add_argument("--out", type=Path, help="JSON file to write: part -> kernels, calls by name")
    args = parser.parse_args()
    found = measure(args.size)
    modules = len(find_targets(make_lm(size_of(args.size)), None))
    totals = {name: kernels.calls.total() for name, kernels in found.items()}
    base = totals["peft lora"]
    parts = sorted(set().union(*(kernels.parts for kernels in found.values())))
    rows = [(part, [found[name].parts[part] for name in found]) for part in parts]
    print(f"{'part':<32}" + "".join(f"{name:>12}" for name in found))
    for label, numbers in [*rows, ("all", list(totals.values()))]:
        print(f"{label:<32}" + "".join(f"{number:12d}" for number in numbers))
    extra = {name: (total - base) / modules for name, total in totals.items()}
    print(f"{f'extra a module ({modules})':<32}" + "".join(f"{value:12.1f}" for value in extra.values()))
    if args.out:
        calls = {
            name: {
                part: {op: n for (p, op), n in sorted(k.calls.items()) if p == part}
                for part in sorted(k.parts)
            }
            for name, k in found.items()
        }
        args.out.write_text(
            json.dumps({"size": args.size, "modules": modules, "extra": extra, "calls": calls}, indent=1)
        )


if __name__ == "__main__":
    main()

"""Benchmarks that need a GPU: the shapes of a model with 7 billion parameters, with random weights.

python -m benchmarks.gpu [--size qwen2.5-7b] [--dtype bfloat16] [--device cuda] [--rounds 10] [--rows N ..]
                         [--parts captured equality training step prediction checkpointing generation types]
                         [--methods lora additive gate] [--out FILE]

Parts:

- "captured": the eager and the captured step of each of --methods, compared with PEFT's LoRA, for each of
  --rows.
- "equality": 12 eager and 12 captured steps of each method from one seed, on the shapes of --equality-size.
  Reports the largest differences, or why a method runs eagerly.
- "training": `bp.train` of the gate form on micro-wgs, captured (also killed and resumed), eager and on a
  CPU. Reports seconds, test scores, and the differences of the parameters from the captured run.
- "step": a training step with the first of --rows, compared with PEFT's LoRA. Reports milliseconds
  (interleaved medians), GiB above the weights, kernel launches, and busy time of the GPU.
- "prediction": S = 10 draws for 16 rows, eager and captured, compared with ten forward passes of PEFT's LoRA.
  Also reports the largest difference of captured from eager draws, on these and on other rows.
- "checkpointing": a step of one row of --long tokens with and without activation checkpointing.
- "generation": replies as in `benchmarks.generation`.
- "types": the model is written to a folder and read in bfloat16, 8 and 4 bits. Reports seconds and GiB of
  loading, GiB at the peak of training, and milliseconds of a step.

Results are written after each part. `--size micro --device cpu` tests the script without a GPU, and
`--table FILE` prints the captured steps from a result file.
"""

import gc
import json
import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # public, of the extension
from torch.profiler import ProfilerActivity, profile

from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import DTYPES, load_backbone
from benchmarks import capture, generation, trained
from benchmarks.speed import device_clock, interleaved, peak_of_gpu
from benchmarks.systems import SIZES, make_batch, make_lm, ours, peft_lora

GIB = 2**30
METHODS = ("lora", "additive", "gate")
PARTS = ("captured", "equality", "training", "step", "prediction", "checkpointing", "generation", "types")


def peak(call: Callable[[], object], device: str) -> float | None:
    """Return the additional GiB at the peak of a second call; None without a GPU."""
    return None if device == "cpu" else peak_of_gpu(call) / 1024


def launches(call: Callable[[], object], device: str) -> dict[str, float]:
    """Return the number of kernels of a call and their milliseconds on the GPU; empty without a GPU."""
    if device == "cpu":
        return {}
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    events = [e for e in profiler.events() if e.device_type == DeviceType.CUDA]
    return {"kernels": len(events), "busy_ms": sum(e.self_device_time_total for e in events) / 1000}


class Bench:
    """Runs PEFT's LoRA on one copy of a language model, and our methods on another."""

    def __init__(self, args: Namespace) -> None:
        self.args, self.size = args, SIZES[args.size]
        self.clock = device_clock(args.device)
        new = partial(make_lm, self.size, args.device, DTYPES[args.dtype])
        self.backbone = Backbone(new())
        self.new = new
        self.peft_step, self.peft_forward, _ = peft_lora(new())

    def batch(self, rows: int | None = None, tokens: int | None = None) -> Any:
        """Return random rows on the device."""
        size = replace(self.size, tokens=tokens or self.size.tokens)
        return make_batch(size, rows).to(self.args.device)

    def timed(self, calls: dict[str, Callable[[], object]], rounds: int | None = None) -> dict[str, float]:
        """Return the median milliseconds of each call."""
        found = interleaved(calls, rounds or self.args.rounds, 2, self.clock)
        return {name: 1000 * seconds for name, seconds in found.items()}

    def step(self) -> dict[str, Any]:
        """Measure a training step."""
        batch = self.batch(self.args.rows[0] if self.args.rows else None)
        calls: dict[str, Callable[[], object]] = {"peft lora": partial(self.peft_step, batch)}
        calls |= {name: partial(self._ours(name), batch) for name in METHODS}
        found: dict[str, Any] = {name: {"ms": ms} for name, ms in self.timed(calls).items()}
        for name, call in calls.items():
            found[name] |= {"gib": peak(call, self.args.device)} | launches(call, self.args.device)
        return found

    def _ours(self, name: str) -> Callable[[Any], object]:
        return ours(self.size, name, self.backbone)[0]

    def checkpointing(self) -> dict[str, Any]:
        """Measure a step of long rows with and without keeping the activations."""
        batch, found = self.batch(1, self.args.long), {}
        for on in (False, True):
            self.backbone.checkpointing = on
            step = partial(self._ours("gate"), batch)
            name = f"1 row of {self.args.long} tokens, {'with' if on else 'without'} checkpointing"
            found[name] = {"ms": self.timed({"": step}, 3)[""], "gib": peak(step, self.args.device)}
        self.backbone.checkpointing = False
        return found

    def prediction(self) -> dict[str, Any]:
        """Measure S = 10 draws for 16 rows, and ten forward passes of PEFT's LoRA."""
        batch = self.batch(16)
        calls: dict[str, Callable[[], object]] = {
            "10 peft lora forwards": lambda: [self.peft_forward(batch) for _ in range(10)]
        }
        found: dict[str, dict[str, Any]] = {}
        for name in METHODS[1:]:
            eager, captured, found[f"{name}, S = 10, captured"] = capture.draws(name, self.backbone, batch)
            calls |= {f"{name}, S = 10": eager, f"{name}, S = 10, captured": captured}
        timed = self.timed(calls, max(2, self.args.rounds // 4))
        return {name: {"ms": ms} | found.get(name, {}) for name, ms in timed.items()}

    def generation(self) -> dict[str, Any]:
        """Measure replies of 32 tokens to 8 prompts of 64 tokens."""
        torch.manual_seed(1)
        prompts = torch.randint(5, self.size.vocabulary, (8, 64))
        self.peft_step = self.peft_forward = None  # type: ignore[assignment]
        empty()  # free PEFT's wrapped language model: there is no memory for a third copy
        calls = {"peft lora": generation.peft_lora(self.size, prompts.to(self.args.device), 32, self.new())}
        for label, (name, how) in generation.SETTINGS.items():
            calls[label] = generation.ours(self.size, name, prompts, 32, self.backbone.lm, **how)
        found = interleaved(calls, max(1, self.args.rounds // 4), 1, self.clock)
        return {name: {"ms": 1000 * s, "tokens_per_s": 8 * 32 / s} for name, s in found.items()}


def types(args: Namespace) -> dict[str, Any]:
    """Load a language model from a folder with each type of frozen weights, and train with it."""
    found: dict[str, Any] = {}
    batch = make_batch(SIZES[args.size]).to(args.device)
    with tempfile.TemporaryDirectory() as place:
        lm = make_lm(SIZES[args.size], args.device, DTYPES[args.dtype])
        lm.save_pretrained(place)
        load_backbone("microworld").tokenizer.save_pretrained(place)
        del lm
        for dtype in args.types:
            empty()
            start = time.perf_counter()
            with memory(args.device) as loading:
                backbone = load_backbone(place, dtype=dtype, device=args.device)
            found[dtype] = {"loading_s": time.perf_counter() - start, "loading_gib": loading.peak}
            step = partial(ours(SIZES[args.size], "gate", backbone)[0], batch)
            step()
            with memory(args.device) as training:
                found[dtype]["losses"] = [step() for _ in range(3)]
            found[dtype] |= {"weights_gib": training.before, "training_gib": training.peak}
            seconds = interleaved({"step": step}, 3, 1, device_clock(args.device))
            found[dtype]["ms"] = 1000 * seconds["step"]
            print(dtype, json.dumps(found[dtype]), flush=True)
            del backbone, step
    return found


class Memory:
    """GiB allocated before a block and at its peak; None without a GPU."""

    before: float | None = None
    peak: float | None = None


@contextmanager
def memory(device: str) -> Iterator[Memory]:
    """Measure the GPU memory that a block allocates."""
    found = Memory()
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        found.before = torch.cuda.memory_allocated() / GIB
    yield found
    if device != "cpu":
        torch.cuda.synchronize()
        found.peak = torch.cuda.max_memory_allocated() / GIB


def empty() -> None:
    """Free unused GPU memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> None:
    """Measure, print and write."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="qwen2.5-7b")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--rows", type=int, nargs="+", help="rows of a training step; default: those of --size"
    )
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=METHODS, help="methods of the captured step"
    )
    parser.add_argument("--equality-size", choices=SIZES, default="896")
    parser.add_argument("--equality-methods", nargs="+", help="default: all installed methods")
    parser.add_argument("--steps", type=int, default=300, help="steps of a training run on the microworld")
    parser.add_argument("--test-rows", type=int, help="test rows of such a run; default: all")
    parser.add_argument("--long", type=int, default=2048, help="tokens of a long row")
    parser.add_argument("--types", nargs="+", default=["bfloat16", "int8", "int4"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="print the table of a result file and exit"
    )
    args = parser.parse_args()
    if args.table:
        print(capture.table(json.loads(args.table.read_text())["captured"]))
        return
    gpu = torch.cuda.get_device_name() if args.device != "cpu" else None
    found: dict[str, Any] = {"size": args.size, "dtype": args.dtype, "gpu": gpu, "torch": torch.__version__}
    bench = None
    for part in args.parts:
        found[part] = {}
        if part in ("captured", "equality"):
            pieces = capture.steps(args, launches) if part == "captured" else capture.equality(args)
        elif part == "training":
            pieces = trained.training(args)
        elif part == "types":
            bench = None
            empty()
            pieces = iter(types(args).items())
        else:
            bench = bench or Bench(args)
            pieces = iter(getattr(bench, part)().items())
        for name, piece in pieces:
            found[part][name] = piece
            print(part, name, json.dumps(piece).replace("\\n", "\n"), flush=True)
            if args.out:
                args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

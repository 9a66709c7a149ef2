"""Parts of `benchmarks.gpu`: the cost of captured steps, and whether they equal eager steps bit for bit."""

import gc
import time
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bara_pyro.core.prediction import predict
from bara_pyro.core.svi import SVI
from bara_pyro.data.types import Batch
from bara_pyro.fast.capture import Captured, Outputs, Record, Run, as_captured, captured, eager
from bara_pyro.fast.predictions import replayed
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import DTYPES
from bara_pyro.methods import METHODS
from bara_pyro.methods.base import build, method_config
from bara_pyro.runs.sections import TrainConfig
from benchmarks.speed import device_clock, interleaved, peak_of_gpu
from benchmarks.systems import NUM_DATA, SIZES, inference, make_batch, make_lm, peft_lora

Figures = dict[str, Any]
Call = Callable[[], object]
STEPS = 12


def again(run: Run, device: torch.device) -> tuple[Outputs, Callable[[], None]]:
    """Run again instead of replaying a recording, to test this file without a GPU."""
    with torch.random.fork_rng(devices=[]), as_captured():
        first = run()

    def replay() -> None:
        with as_captured():
            new = run()
        first.numbers.copy_(new.numbers)
        first.grads[:] = new.grads

    return first, replay


def recorder(device: str) -> Record | None:
    """Return the recorder for a device; None for CUDA graphs."""
    return again if device == "cpu" else None


def attempt(call: Callable[[], Figures]) -> Figures:
    """Return the result of a call, or its traceback, so that the following parts are still measured."""
    try:
        return call()
    except Exception:  # noqa: BLE001 - every failure is a result
        return {"failed": traceback.format_exc()}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def timed(calls: dict[str, Call], args: Namespace, launches: Callable[[Call, str], Figures]) -> Figures:
    """Return the milliseconds, additional GiB and kernels of each call."""
    medians = interleaved(calls, args.rounds, 2, device_clock(args.device))
    found: Figures = {name: {"ms": 1000 * seconds} for name, seconds in medians.items()}
    for name, call in calls.items():
        if args.device != "cpu":
            found[name]["gib"] = peak_of_gpu(call) / 1024
        found[name] |= launches(call, args.device)
    return found


def steps(args: Namespace, launches: Callable[[Call, str], Figures]) -> Iterator[tuple[str, Figures]]:
    """Time a step of PEFT's LoRA, and eager and captured steps of our methods, for each value of `--rows`.

    All share one language model in turn: PEFT removes its adapters again.
    """
    size, rows = SIZES[args.size], args.rows or [SIZES[args.size].rows]
    batches = {number: make_batch(size, number).to(args.device) for number in rows}
    lm = make_lm(size, args.device, DTYPES[args.dtype])
    step, _, unload = peft_lora(lm)
    for number, batch in batches.items():
        call: dict[str, Call] = {"peft lora": partial(step, batch)}
        yield f"peft lora, {number} rows", attempt(partial(timed, call, args, launches))
    backbone = Backbone(unload())
    for number, batch in batches.items():
        for name in args.methods:
            one = partial(_both, args, backbone, name, batch, launches)
            yield f"{name}, {number} rows", attempt(one)


def _both(
    args: Namespace, backbone: Backbone, name: str, batch: Batch, launches: Callable[[Call, str], Figures]
) -> Figures:
    plain, replayed = (inference(name, backbone) for _ in range(2))
    captured(replayed, recorder(args.device))
    start, before = time.perf_counter(), reserved(args.device)
    replayed.step(batch)
    recorded: Figures = {"recording_s": time.perf_counter() - start}
    if args.device != "cpu":
        recorded["held_gib"] = reserved(args.device) - before
    calls: dict[str, Call] = {
        "eager": partial(plain.step, batch),
        "captured": partial(replayed.step, batch),
    }
    found = timed(calls, args, launches)
    return found | recorded | said(replayed)


def draws(name: str, backbone: Backbone, batch: Batch) -> tuple[Call, Call, Figures]:
    """Return S = 10 eager and captured draws for a batch, and how far they are apart on it and on others."""
    pairs = []
    for _ in range(2):
        torch.manual_seed(3)
        svi = inference(name, backbone)
        with torch.no_grad():
            for parameter in svi.parameters:  # B is 0 at the start, and no draw then matters
                parameter.add_(0.1 * torch.randn_like(parameter))
        pairs.append((svi.model, svi.guide))
    eager_call, call = (partial(predict, *pair, samples=10) for pair in pairs)
    recorded = replayed(*pairs[1], after=0)
    found: Figures = {"apart": []}
    start = time.perf_counter()
    call(batch)
    found["recording_s"] = time.perf_counter() - start
    with nullcontext() if backbone.device.type == "cpu" else as_captured():  # the masks of a capture
        for step in range(4):
            rows = replace(shifted(batch, step), ids=tuple(f"{step}/{row}" for row in range(len(batch))))
            found["apart"].append(float((eager_call(rows) - call(rows)).abs().max()))
    found |= {"recordings": len(recorded.recordings), "eager_because": sorted(recorded.eager)}
    return partial(eager_call, batch), partial(call, batch), found


def table(found: Figures) -> str:
    """Return the results of `steps` as a Markdown table; PEFT's LoRA has only an eager step."""
    lines = ["| training step | eager, ms | captured, ms | busy, ms | GiB kept by the graph |"]
    lines += ["|---|---:|---:|---:|---:|"]
    for name, own in found.items():
        plain = own.get("eager", own.get("peft lora", {}))
        again = own.get("captured", {})
        numbers = (plain.get("ms"), again.get("ms"), plain.get("busy_ms"), own.get("held_gib"))
        cells = ("–" if number is None else f"{number:.3g}" for number in numbers)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def reserved(device: str) -> float:
    """Return the GiB reserved on a GPU, including the memory that recorded steps keep."""
    if device == "cpu":
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() / 2**30


def said(svi: SVI) -> Figures:
    """Return how many steps were recorded, and why others ran eagerly."""
    replayed = svi.replayed
    if not isinstance(replayed, Captured):
        return {}
    found: Figures = {"recordings": len(replayed.recordings), "eager_because": sorted(replayed.eager)}
    if replayed.unfit is not None:
        found["unfit"] = replayed.unfit
    return found


@contextmanager
def deterministic(fill: bool = False, kernel: SDPBackend = SDPBackend.MATH) -> Iterator[None]:
    """Make torch use deterministic kernels if they exist.

    Other attention kernels sum gradients in no fixed order. cuBLAS needs CUBLAS_WORKSPACE_CONFIG=:4096:8.

    Args:
        fill: fill uninitialized memory with NaN, the default of torch in deterministic mode.
        kernel: the attention kernel; plain products if it cannot run.
    """
    before = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    with warnings.catch_warnings(), sdpa_kernel([kernel, SDPBackend.MATH]):
        warnings.filterwarnings("ignore", message=".*deterministic.*")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        try:
            yield
        finally:
            torch.utils.deterministic.fill_uninitialized_memory = before  # type: ignore[attr-defined]
            torch.use_deterministic_algorithms(False)


def equality(args: Namespace) -> Iterator[tuple[str, Figures]]:
    """Train each method from one seed, twice eagerly and once captured; yield the differences of the runs."""
    size = SIZES[args.equality_size]
    backbone = Backbone(make_lm(size, args.device, DTYPES[args.dtype]))
    batches = [shifted(make_batch(size), step).to(args.device) for step in range(STEPS)]
    for kernel in (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH):
        for fill in (True, False):
            with deterministic(fill, kernel):
                found = {"attention alone": attempt(partial(_attention, args))}
                found["a step"] = attempt(partial(_one_step, backbone, batches[0]))
            yield f"finite: {kernel.name.lower()}, {'NaN' if fill else 'nothing'} filled in", found
    for name in args.equality_methods or [name for name, _ in METHODS.usable()]:
        with deterministic():
            found = attempt(partial(_apart, args, backbone, name, batches))
        yield name, found


def _attention(args: Namespace) -> Figures:
    """Return whether torch's attention is finite for rows that begin with padding (fully masked)."""
    torch.manual_seed(1)
    shape, options = (2, 4, 24, 32), {"device": args.device, "dtype": DTYPES[args.dtype]}
    given = query, key, value = [torch.randn(shape, **options).requires_grad_() for _ in range(3)]
    mask = torch.ones(24, 24, device=args.device, dtype=torch.bool).tril()
    mask = mask & (torch.arange(24, device=args.device) >= 6)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask.expand(2, 1, 24, 24))
    out[:, :, -1].sum().backward()
    grads = [one.grad is not None and bool(one.grad.isfinite().all()) for one in given]
    return {"forward": bool(out.isfinite().all()), "backward": all(grads)}


def _one_step(backbone: Backbone, batch: Batch) -> Figures:
    svi = eager(inference("gate", backbone))
    svi.step(batch)
    return {"grad_norm": svi.last["grad_norm"]}


def shifted(batch: Batch, step: int) -> Batch:
    """Return rows of the same shape with other tokens, padding and labels."""
    ids, mask, labels = batch.input_ids, batch.attention_mask, batch.labels
    if labels is not None:
        labels = labels.roll(step)
    return type(batch)(
        ids.roll((step, 3 * step), (0, 1)), mask.roll(step, 0), batch.answer_ids, labels, batch.ids
    )


def _apart(args: Namespace, backbone: Backbone, name: str, batches: list[Batch]) -> Figures:
    runs: list[list[dict[str, Tensor]]] = []
    found: Figures = {}
    for record in (False, False, True):
        torch.manual_seed(3)
        config = method_config(name)
        model, guide = build(config, backbone, NUM_DATA, {})
        train = TrainConfig(steps=STEPS, batch_size=len(batches[0]))
        svi = METHODS[name].svi(model, guide, train, config)
        captured(svi, recorder(args.device)) if record else eager(svi)
        torch.manual_seed(9)
        runs.append([_step(svi, batch) for batch in batches])
        found |= said(svi)
    first, other, replayed = runs
    found |= {"eager again": furthest(first, other), "captured": furthest(first, replayed)}
    found["moved"] = float((first[0]["parameters"] - first[-1]["parameters"]).abs().max())
    return found


def furthest(first: list[dict[str, Tensor]], second: list[dict[str, Tensor]]) -> dict[str, float]:
    """Return the largest difference of two runs in each output of a step."""
    return {
        key: max(float((a[key] - b[key]).abs().max()) for a, b in zip(first, second, strict=True))
        for key in first[0]
    }


def _step(svi: SVI, batch: Batch) -> dict[str, Tensor]:
    """Take a step; return its losses and norm, gradients and parameters (float64, on the CPU)."""
    svi.step(batch)
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in svi.parameters]
    tensors = {"gradients": grads, "parameters": [p.detach() for p in svi.parameters]}
    flat = {key: torch.cat([v.flatten() for v in values]).cpu().double() for key, values in tensors.items()}
    return {"parts": torch.tensor([*svi.last.values()], dtype=torch.float64), **flat}

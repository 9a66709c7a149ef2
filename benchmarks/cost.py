"""Measure what activation checkpointing saves, and what adapters in only the upper layers cost.

python -m benchmarks.cost checkpointing [--layers 24] [--tokens 512] [--rows 1] [--out FILE]
python -m benchmarks.cost upper [--layers 24] [--upper 6] [--tokens 128] [--out FILE]

"checkpointing": peak memory of a training step with and without checkpointing, their ratio, and whether the
gradients are equal bit for bit. "upper": time of a step, and of S = 10 draws for rows seen before, with
adapters in the upper K of L layers. Times are ratios to adapters in all layers, from interleaved medians; the
share of layers is K / L. PEFT's LoRA in all layers is measured beside.
"""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bara_pyro.core.optimizers import adamw
from bara_pyro.core.prediction import predict
from bara_pyro.core.svi import SVI
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.models.bara import BaRA
from benchmarks.speed import interleaved, peak_memory
from benchmarks.systems import NUM_DATA, SIZES, Size, make_batch, make_lm, peft_lora, write


def system(backbone: Backbone, targets: str | None = None) -> tuple[BaRA, WeibullGuide, SVI]:
    """Return the gate form with its guide and optimizer, always with the same initial values."""
    torch.manual_seed(0)
    model = BaRA(backbone, NUM_DATA, form="gate", target_modules=targets)
    guide = WeibullGuide(model)
    return model, guide, SVI(model, guide, adamw(model, guide, 1e-3))


def size_of(args: Namespace) -> Size:
    """Return the size of the language model from the arguments."""
    return replace(SIZES["896"], layers=args.layers, tokens=args.tokens, rows=args.rows)


def checkpointing(args: Namespace) -> dict[str, Any]:
    """Measure the memory of a step with and without checkpointing, and compare the gradients."""
    size = size_of(args)
    peft = peak_memory(partial(peft_lora(size)[0], make_batch(size)))
    backbone, batch = Backbone(make_lm(size)), make_batch(size)
    peaks, gradients = [], []
    for on in (False, True):
        backbone.checkpointing = on
        _, _, svi = system(backbone)
        torch.manual_seed(1)
        svi.gradients(batch)
        gradients.append([p.grad.clone() for p in svi.parameters if p.grad is not None])
        peaks.append(peak_memory(lambda svi=svi: svi.step(batch)))  # type: ignore[misc]
    same = all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    print(f"peak memory of a step {peaks[0]:9.1f} MiB, {peaks[0] / peft:.3f} of PEFT LoRA's")
    print(f"with checkpointing    {peaks[1]:9.1f} MiB, {peaks[1] / peaks[0]:.3f} of it")
    print(f"gradients equal bit for bit: {same}")
    return {"mib": {"peft lora": peft, "without": peaks[0], "with": peaks[1]}, "equal": same}


def upper(args: Namespace) -> dict[str, Any]:
    """Measure a step and draws with adapters in only the upper layers."""
    size = size_of(args)
    backbone, batch = Backbone(make_lm(size)), make_batch(size)
    peft_step, peft_forward, _ = peft_lora(size)
    chosen = "|".join(str(size.layers - 1 - i) for i in range(args.upper))
    whole = system(backbone)
    part = system(backbone, rf"model\.layers\.({chosen})\.self_attn\.[qv]_proj|lm_head")
    t = interleaved(
        {
            "step": lambda: whole[2].step(batch),
            "step, upper": lambda: part[2].step(batch),
            "S = 10": lambda: predict(*whole[:2], batch, samples=10),
            "S = 10, upper": lambda: predict(*part[:2], batch, samples=10),
            "step, peft lora": lambda: peft_step(batch),
            "S = 10, peft lora": lambda: [peft_forward(batch) for _ in range(10)],
        },
        args.repeats,
        warmup=1,
    )
    for name in ("step", "S = 10"):
        ratio, share = t[f"{name}, upper"] / t[name], args.upper / size.layers
        print(f"{name:<8} upper {args.upper} of {size.layers}: {ratio:.3f} of all, by count {share:.3f}")
        print(f"{name:<8} all layers: {t[name] / t[f'{name}, peft lora']:.3f} of PEFT LoRA")
    return {"seconds": t}


def main() -> None:
    """Measure and print."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("checkpointing", "upper"))
    for name, default in {"layers": 24, "upper": 6, "tokens": 512, "rows": 1, "repeats": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {"checkpointing": checkpointing, "upper": upper}[args.what](args)
    write(args.out, {"layers": args.layers, "tokens": args.tokens, "rows": args.rows, **found})


if __name__ == "__main__":
    main()

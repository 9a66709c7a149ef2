"""The draw of a gate as one autograd node by hand, in plain torch, and in plain torch under `torch.compile`.

python -m benchmarks.compiled [--tokens 64 512] [--device cpu]

Medians of forward and backward together, interleaved, as ratios to the node by hand
(`bara_pyro/core/distributions/drawn.py`). Compilation needs a C++ compiler on a CPU, Triton on a GPU, and is
not counted; it took about a minute on one x86 core.
"""

import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.core.distributions import KAPPA_MIN, MEAN_MIN
from bara_pyro.core.distributions.drawn import drawn_gate
from benchmarks.speed import device_clock, interleaved

ROWS, GATES, RANK, ROUNDS, CALLS = 4, 2, 8, 60, 5
Draw = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor, Tensor]]


def plain(raw: Tensor, log_energy: Tensor, max_kappa: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `drawn_gate` returns; beyond the bounds the gradient is 0 in every direction."""
    mean, kappa = F.softplus(raw).chunk(2, dim=-1)
    mean, kappa = mean.clamp_min(MEAN_MIN), kappa.clamp(KAPPA_MIN, max_kappa)
    value = mean * torch.exp(kappa * log_energy - torch.lgamma(1 + kappa))
    return value + torch.finfo(raw.dtype).tiny, mean, kappa


def passes(draw: Draw, raw: Tensor, log_energy: Tensor) -> None:
    """Run forward and backward a few times."""
    for _ in range(CALLS):
        found = draw(raw, log_energy, 1.0)
        torch.autograd.grad(found, raw, found)


def main() -> None:
    """Measure and print."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 512], help="of a row, for each size")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    args = parser.parse_args()
    torch.set_num_threads(1)
    clock = device_clock(args.device) if args.device.startswith("cuda") else time.process_time
    draws: dict[str, Draw] = {
        "node by hand": drawn_gate,
        "plain": plain,
        "compiled": torch.compile(plain, dynamic=True),
    }
    print(f"{'tokens':>8}" + "".join(f"{name:>14}" for name in draws))
    for tokens in args.tokens:
        shape = (ROWS, tokens, GATES)
        raw = torch.randn(*shape, 2 * RANK, device=args.device, requires_grad=True)
        log_energy = torch.empty(*shape, RANK, device=args.device).exponential_().log()
        calls = {name: partial(passes, draw, raw, log_energy) for name, draw in draws.items()}
        seconds = interleaved(calls, ROUNDS, clock=clock)
        base = seconds["node by hand"]
        print(f"{tokens:>8}" + "".join(f"{seconds[name] / base:14.2f}" for name in draws), flush=True)


if __name__ == "__main__":
    main()

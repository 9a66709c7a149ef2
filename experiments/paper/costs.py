"""What a run costs in time and memory: estimated from measurements on one GPU, or measured here."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from bara_pyro.cli.terminal import say
from bara_pyro.errors import BaraError
from bara_pyro.methods import METHODS
from bara_pyro.runs.evaluate import draw
from experiments.paper import alignment
from experiments.paper.protocol import PROTOCOL, SAMPLES, PaperRun
from experiments.paper.runs import Setup

WEIGHTS = 7_615_616_512  # of Qwen2.5-7B, whose shapes were measured
OVERHEAD = 0.04  # seconds that a step takes at least on a GPU, which waits for Python
TOKEN = 0.0073  # seconds that a token of a reply takes, eight at a time on one H100


@dataclass(frozen=True)
class Cost:
    """What a method costs.

    Attributes:
        step: seconds a training step.
        row: seconds a test row, with S = 0 and the most draws.
        memory: GiB above the weights while it trains.
        trained: trainable parameters, as a multiple of LoRA's.
        token: seconds a token of a reply, eight replies at a time.
    """

    step: float
    row: float
    memory: float
    trained: float = 1.0
    token: float = TOKEN


# One NVIDIA H100, Qwen2.5-7B's shapes in bfloat16, r = 8, four rows of 300 tokens a step, S = 10 (the study
# `efficiency`). Dropout, the ensemble, C-LoRA and FVAE-LoRA: LoRA's costs times their ratio to it on a CPU.
COSTS = {
    "lora": Cost(0.101, 0.033, 6.4),
    "map": Cost(0.101, 0.033, 6.4),
    "mc_dropout": Cost(0.102, 0.19, 7.1),
    "ensemble": Cost(0.325, 0.10, 19.3, 3.0),
    "laplace": Cost(0.101, 0.10, 6.5),
    "blob": Cost(0.245, 0.16, 8.2, 1.43),
    "scalabl": Cost(0.127, 0.09, 6.4),
    "clora": Cost(0.104, 0.18, 6.7, 1.13),
    "fvae": Cost(0.112, 0.02, 8.2, 9.02),
    "bara-paper": Cost(0.171, 0.11, 6.0, 1.43),
    "bara": Cost(0.190, 0.13, 6.0, 1.87),
}


def estimated(setup: Setup, weights: int) -> dict[str, Cost]:
    """Return the costs on an H100, scaled by the weights of the language model and the rows of a step."""
    ratio = weights / WEIGHTS
    batch = setup.typed.get("train.batch_size", PROTOCOL["train.batch_size"]) / PROTOCOL["train.batch_size"]
    draws = max(setup.typed.get("predict.samples", [SAMPLES])) / SAMPLES
    return {
        arm: Cost(
            max(OVERHEAD, c.step * ratio * batch),
            c.row * ratio * draws,
            c.memory * ratio * batch,
            c.trained,
            max(OVERHEAD / 8, c.token * ratio),
        )
        for arm, c in COSTS.items()
    }


def measured(
    runs: Sequence[PaperRun], setup: Setup, guess: dict[str, Cost], seconds: float = 120.0
) -> dict[tuple[str, str], Cost]:
    """Measure every method on one data set, and the first method on every data set; nothing is kept.

    Returns:
        (arm, data set) -> its costs; those of a pair that was not measured are the arm's, times how much
        more the first method takes there.
    """
    arms, tasks = (list(dict.fromkeys(names)) for names in zip(*((r.arm, r.task) for r in runs), strict=True))
    pairs = [(arm, tasks[0]) for arm in arms] + [(arms[0], task) for task in tasks[1:]]
    first = {arm: next(run for run in runs if run.arm == arm) for arm in arms}
    known = {(run.arm, run.task): run for run in reversed(runs)}
    found: dict[tuple[str, str], Cost] = {}
    for arm, task in pairs:
        one = known.get((arm, task), replace(first[arm], task=task))
        try:
            found[arm, task] = _timed(one, setup, guess[arm], seconds / len(pairs))
        except BaraError as error:
            say(f"{one.label} cannot be measured: {error}")
            found[arm, task] = guess[arm]
    base = found[arms[0], tasks[0]]
    for arm in arms:
        for task in tasks:
            own, there = found[arm, tasks[0]], found[arms[0], task]
            more = (there.step / base.step, there.row / base.row)
            cost = replace(own, step=own.step * more[0], row=own.row * more[1], token=there.token)
            found.setdefault((arm, task), cost)
    return found


def _timed(run: PaperRun, setup: Setup, known: Cost, seconds: float) -> Cost:
    """Train and predict for some seconds; the first step and the first rows are not timed."""
    system = replace(setup, test_rows=min(8, setup.test_rows or 8)).job(run).system()
    c, device = system.config, system.backbone.device
    svi = METHODS[c.method.name].svi(system.model, system.guide, c.train, c.method)
    rows, test = system.encoded("train"), system.encoded("test")
    size, times = c.train.batch_size, list[float]()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    while sum(times) < 0.6 * seconds or len(times) < 3:
        places = [order[(len(times) * size + i) % len(order)] for i in range(size)]
        batch = rows.batch(places, system.answer_ids).to(device)
        times.append(_seconds(partial(svi.step, batch), device))
    row = sum(_seconds(partial(draw, system, test, s), device) for s in c.predict.samples) / len(test)
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else known.memory
    token = alignment.seconds_a_token(system) if run.task == alignment.TASK else known.token
    return Cost(statistics.median(times[1:]), row, peak, known.trained, token)


def _seconds(call: Any, device: torch.device) -> float:
    begun = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun

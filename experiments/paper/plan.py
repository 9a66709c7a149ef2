"""The plan of a command: its runs, what they cost in time, memory and disk, and what is missing."""

import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bara_pyro.cli.terminal import say, show
from bara_pyro.data import first_rows
from bara_pyro.errors import BaraError
from bara_pyro.lm.targets import find_targets
from bara_pyro.methods import METHODS
from bara_pyro.report import Column, Table
from bara_pyro.runs.by_rows import for_rows
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw
from experiments.paper import alignment
from experiments.paper.protocol import ARMS, DATASETS, PROTOCOL, SAMPLES, Run
from experiments.paper.runs import Job, Setup, load_rows, load_system

HOUR = 3600.0
WEIGHTS = 7_615_616_512  # of Qwen2.5-7B, whose shapes were measured
PROMPTS = 805 + 164  # of AlpacaEval and HumanEval
TOKEN = 0.0073  # seconds that a token of a reply takes, eight at a time on one H100
BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True)
class Cost:
    """What a method costs.

    Attributes:
        step: seconds a training step.
        row: seconds a test row, with S = 0 and the most draws.
        memory: GiB above the weights while it trains.
        trained: trainable parameters, as a multiple of LoRA's.
    """

    step: float
    row: float
    memory: float
    trained: float = 1.0


OVERHEAD = 0.04  # seconds that a step takes at least on a GPU, which waits for Python
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
    "fvae": Cost(0.112, 0.20, 8.2, 9.02),
    "bara-paper": Cost(0.171, 0.11, 6.0, 1.43),
    "bara": Cost(0.190, 0.13, 6.0, 1.87),
}


@dataclass(frozen=True)
class Model:
    """The weights of a language model, and the parameters of LoRA in it at the protocol's rank."""

    weights: int
    lora: int


def model_of(name: str) -> tuple[Model | None, str | None]:
    """Return the size of a language model without loading its weights, or why it cannot be read."""
    try:
        config = AutoConfig.from_pretrained(name)
        with torch.device("meta"):
            lm = AutoModelForCausalLM.from_config(config)
        r = PROTOCOL["adapter.r"]
        lora = r * sum(t.in_features + t.out_features for t in find_targets(lm, None))
        return Model(sum(p.numel() for p in lm.parameters()), lora), None
    except (OSError, ValueError, BaraError) as error:
        return None, f"language model {name}: {str(error).partition(chr(10))[0][:150]}"


def rows_of(runs: Sequence[Run], setup: Setup) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Return the numbers of training and test rows of each data set, and what is missing or differs."""
    found: dict[str, tuple[int, int]] = {}
    missing = alignment.missing(setup.data) if any(run.task == alignment.TASK for run in runs) else []
    for name in dict.fromkeys(name for run in runs for name in (run.task, *run.shifted)):
        published = DATASETS[name]
        counts = (published.train, published.test)
        try:
            task = load_rows(setup, name)
        except BaraError as error:
            missing.append(f"data set {published.name}: {error}")
        else:
            counts = (len(task.train), len(task.test))
            if counts != (published.train, published.test):
                missing.append(
                    f"{published.name}: {counts[0]:,} training and {counts[1]:,} test rows here, "
                    f"published are {published.train:,} and {published.test:,}"
                )
        found[name] = counts
    return found, missing


def steps_of(run: Run, setup: Setup, rows: dict[str, tuple[int, int]]) -> int:
    """Return the training steps of a run."""
    config = load_config(overrides=setup.settings(run))
    return for_rows(config, max(1, rows[run.task][0])).train.total_steps


def seconds_of(run: Run, setup: Setup, rows: dict[str, tuple[int, int]], cost: Cost) -> float:
    """Return the estimated seconds of a run: training, and testing on all its data sets."""
    tested = sum(rows[name][1] for name in (run.task, *run.shifted)) * cost.row
    if run.task == alignment.TASK:
        tested = PROMPTS * setup.replies * setup.new_tokens * TOKEN
    return steps_of(run, setup, rows) * cost.step + tested


def estimated(setup: Setup, model: Model | None) -> dict[str, Cost]:
    """Return the costs on an H100, scaled by the sizes of the language model and of a step."""
    ratio = model.weights / WEIGHTS if model else 1.0
    batch = setup.typed.get("train.batch_size", PROTOCOL["train.batch_size"]) / PROTOCOL["train.batch_size"]
    draws = max(setup.typed.get("predict.samples", [SAMPLES])) / SAMPLES
    return {
        arm: Cost(
            max(OVERHEAD, c.step * ratio * batch), c.row * ratio * draws, c.memory * ratio * batch, c.trained
        )
        for arm, c in COSTS.items()
    }


# The measurement ---------------------------------------------------------------------------------------


def measured(
    runs: Sequence[Run], setup: Setup, guess: dict[str, Cost], seconds: float = 120.0
) -> dict[tuple[str, str], Cost]:
    """Measure every method on one data set, and the first method on every data set; nothing is kept.

    Returns:
        (arm, data set) -> its costs; those of a pair that was not measured are the arm's, times how much
        more the first method takes there.
    """
    arms, tasks = (list(dict.fromkeys(names)) for names in zip(*((r.arm, r.task) for r in runs), strict=True))
    pairs = [(arm, tasks[0]) for arm in arms] + [(arms[0], task) for task in tasks[1:]]
    first = {arm: next(run for run in runs if run.arm == arm) for arm in arms}
    found: dict[tuple[str, str], Cost] = {}
    for arm, task in pairs:
        one = Run(arm, task, 0, first[arm].variant, first[arm].settings)
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
            found.setdefault(
                (arm, task), Cost(own.step * more[0], own.row * more[1], own.memory, own.trained)
            )
    return found


def _timed(run: Run, setup: Setup, known: Cost, seconds: float) -> Cost:
    """Train and predict for some seconds; the first step and the first rows are not timed."""
    system = load_system(Job(run, setup, {}))
    c, device = system.config, system.backbone.device
    svi = METHODS[c.method.name].svi(system.model, system.guide, c.train, c.method)
    rows, test = system.split("train"), system.split("test")
    size, times = c.train.batch_size, list[float]()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    while sum(times) < 0.6 * seconds or len(times) < 3:
        places = [order[(len(times) * size + i) % len(order)] for i in range(size)]
        batch = rows.batch(places, system.answer_ids).to(device)
        times.append(_seconds(partial(svi.step, batch), device))
    some = first_rows(test, min(len(test), 8))
    row = sum(_seconds(partial(draw, system, some, s), device) for s in c.predict.samples) / len(some)
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else known.memory
    return Cost(statistics.median(times[1:]), row, peak, known.trained)


def _seconds(call: Any, device: torch.device) -> float:
    begun = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


# The plan ----------------------------------------------------------------------------------------------

COLUMNS = (
    Column("name", "method"),
    Column("runs", "runs", format=",d"),
    Column("steps", "steps", format=",d"),
    Column("step", "a step", "s", ".3f"),
    Column("hours", "hours", format=".1f"),
)


def show_plan(
    tables: Sequence[str], runs: Sequence[Run], setup: Setup, *, workers: int, calibrate: bool
) -> None:
    """Print the plan of these runs."""
    model, why = model_of(setup.model)
    rows, missing = rows_of(runs, setup)
    missing += [why] if why else []
    guess = estimated(setup, model)
    costs = {(run.arm, run.task): guess[run.arm] for run in runs}
    if calibrate:
        costs |= measured(runs, setup, guess)
    seconds = {run.name: seconds_of(run, setup, rows, costs[run.arm, run.task]) for run in runs}
    lines: list[dict[str, Any]] = []
    for arm in dict.fromkeys(run.arm for run in runs):
        own = [run for run in runs if run.arm == arm]
        lines.append(
            {
                "name": ARMS[arm].name,
                "runs": len(own),
                "steps": sum(steps_of(run, setup, rows) for run in own),
                "step": statistics.mean(costs[run.arm, run.task].step for run in own),
                "hours": sum(seconds[run.name] for run in own) / HOUR,
            }
        )
    total = {key: sum(line[key] for line in lines) for key in ("runs", "steps", "hours")}
    show(Table(COLUMNS, [*lines, {"name": "all", **total}], f"{', '.join(tables)} with {setup.model}"))
    for sentence in sentences(runs, setup, model, costs, total["hours"], workers, calibrate):
        say(sentence)
    say("Missing or different:" if missing else "Nothing is missing.")
    for one in missing:
        say(f"- {one}")


def sentences(
    runs: Sequence[Run],
    setup: Setup,
    model: Model | None,
    costs: dict[tuple[str, str], Cost],
    hours: float,
    workers: int,
    calibrate: bool,
) -> list[str]:
    """Return what the plan says of time, memory and disk."""
    size = model or Model(WEIGHTS, 3_768_320)
    dtype = setup.typed.get("backbone.dtype", PROTOCOL["backbone.dtype"])
    weights = size.weights * BYTES[dtype] / 2**30
    memory = max(costs[run.arm, run.task].memory for run in runs)
    own = memory if calibrate and setup.device.startswith("cuda") else weights + memory
    kept = sum(4 * size.lora * costs[run.arm, run.task].trained for run in runs) / 2**30
    there = next(path for path in (setup.out, *setup.out.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free / 2**30
    source = f"measured on {setup.device}" if calibrate else "estimated for an H100; --calibrate measures"
    wall = f", {hours / workers:.1f} hours with {workers} runs at a time" if workers > 1 else ""
    return [
        f"Time: {hours:.1f} GPU-hours, {source}{wall}.",
        f"Memory: {own:.1f} GiB on the device, {weights:.1f} of them the weights in {dtype}.",
        f"Disk: {kept:.1f} GiB for the runs, and {weights:.1f} for the weights where they are not there yet; "
        f"{free:.1f} GiB are free.",
    ]

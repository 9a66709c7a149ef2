"""The plan of a command: its runs, what they cost in time, memory and disk, and what is missing."""

import shutil
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bara_pyro.cli.terminal import say, show
from bara_pyro.errors import BaraError
from bara_pyro.lm.targets import find_targets
from bara_pyro.report.table import Column, Table
from bara_pyro.runs.config import for_rows, load_config
from experiments.paper import alignment
from experiments.paper.costs import WEIGHTS, Cost, estimated, measured
from experiments.paper.protocol import ARMS, DATASETS, PROTOCOL, PaperRun
from experiments.paper.runs import Setup, load_rows

HOUR, MINUTE = 3600.0, 60.0
PROMPTS = (805, 164)  # of AlpacaEval and HumanEval
TAXED_ROWS = 1000  # of an OpenLLM task, roughly
BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.5}


class Model(NamedTuple):
    """The weights of a language model, and the parameters of LoRA in it at the protocol's rank."""

    weights: int
    lora: int


QWEN = Model(WEIGHTS, 3_768_320)


def model_of(name: str) -> tuple[Model, list[str]]:
    """Return the size of a language model without loading its weights, and why it cannot be read."""
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        with torch.device("meta"):
            lm = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        r = PROTOCOL["adapter.r"]
        lora = r * sum(t.in_features + t.out_features for t in find_targets(lm, None))
        return Model(sum(p.numel() for p in lm.parameters()), lora), []
    except (OSError, ValueError, BaraError) as error:
        return QWEN, [f"language model {name}: {str(error).partition(chr(10))[0][:150]}"]


def rows_of(runs: Sequence[PaperRun], setup: Setup) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Return the numbers of training and test rows of each data set, and what is missing or differs."""
    found: dict[str, tuple[int, int]] = {}
    replies = any(run.task == alignment.TASK for run in runs)
    missing = alignment.missing(setup.data_dir, setup.asked()) if replies else []
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


def steps_of(run: PaperRun, setup: Setup, rows: dict[str, tuple[int, int]]) -> int:
    """Return the training steps of a run."""
    config = load_config(overrides=setup.settings(run))
    return for_rows(config, max(1, rows[run.task][0])).train.total_steps


def seconds_of(
    run: PaperRun, setup: Setup, rows: dict[str, tuple[int, int]], cost: Cost, judged: float = 0.0
) -> float:
    """Return the estimated seconds of a run: training, and testing on all its data sets.

    `judged` is the time (seconds) that the judge takes for a reply.
    """
    tested = sum(rows[name][1] for name in (run.task, *run.shifted)) * cost.row
    if run.task == alignment.TASK:
        most = setup.test_rows or TAXED_ROWS
        chat, programs = (min(most, of) for of in PROMPTS)
        tested += len(setup.taxed) * most * cost.row
        tested += (chat + programs) * setup.replies * setup.new_tokens * cost.token
        tested += chat * (setup.replies + 1) * judged  # the replies, and the reference
    return steps_of(run, setup, rows) * cost.step + tested


COLUMNS = (
    Column("name", "method"),
    Column("runs", "runs", format=",d"),
    Column("steps", "steps", format=",d"),
    Column("step", "a step", "s", ".3f"),
)


def show_plan(
    tables: Sequence[str], runs: Sequence[PaperRun], setup: Setup, *, workers: int, calibrate: bool
) -> None:
    """Print the plan of these runs."""
    model, unread = model_of(setup.model)
    rows, missing = rows_of(runs, setup)
    guess = estimated(setup, model.weights)
    found = measured(runs, setup, guess) if calibrate else {}
    costs = {run.name: found.get((run.arm, run.task), guess[run.arm]) for run in runs}
    replies = any(run.task == alignment.TASK for run in runs)
    judged = guess["lora"].row * model_of(setup.judge)[0].weights / model.weights if replies else 0.0
    lines: list[dict[str, Any]] = []
    for arm in dict.fromkeys(run.arm for run in runs):
        own = [run for run in runs if run.arm == arm]
        cells = {
            "runs": len(own),
            "steps": sum(steps_of(run, setup, rows) for run in own),
            "step": statistics.mean(costs[run.name].step for run in own),
            "seconds": sum(seconds_of(run, setup, rows, costs[run.name], judged) for run in own),
        }
        lines.append({"name": ARMS[arm].name, **cells})
    total = {key: sum(line[key] for line in lines) for key in ("runs", "steps", "seconds")}
    unit, length = ("hours", HOUR) if total["seconds"] >= HOUR else ("minutes", MINUTE)
    timed = [{**line, "time": line["seconds"] / length} for line in (*lines, {"name": "all", **total})]
    columns = (*COLUMNS, Column("time", unit, format=".1f"))
    show(Table(columns, timed, f"{', '.join(tables)} with {setup.model}"))
    gpu = setup.device.startswith("cuda")
    other = "" if gpu else f", not for this {setup.device}"
    source = (
        f"measured on {setup.device}" if calibrate else f"estimated for an H100{other}; --calibrate measures"
    )
    time = total["seconds"] / length
    wall = f", {time / workers:.1f} {unit} with {workers} runs at a time" if workers > 1 else ""
    say(f"Time: {time:.1f} {'GPU-' if gpu else ''}{unit}, {source}{wall}.")
    for sentence in needs(setup, model, costs, measured_here=calibrate):
        say(sentence)
    say("Missing or different:" if missing or unread else "Nothing is missing.")
    for one in (*unread, *missing):
        say(f"- {one}")


def needs(setup: Setup, model: Model, costs: Mapping[str, Cost], *, measured_here: bool) -> list[str]:
    """Return what the plan says of memory and disk."""
    dtype = setup.typed.get("backbone.dtype", PROTOCOL["backbone.dtype"])
    weights = model.weights * BYTES[dtype] / 2**30
    memory = max(cost.memory for cost in costs.values())
    whole = memory if measured_here and setup.device.startswith("cuda") else weights + memory
    kept = sum(4 * model.lora * cost.trained for cost in costs.values()) / 2**30
    there = next(path for path in (setup.out, *setup.out.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free / 2**30
    return [
        f"Memory: {whole:.1f} GiB on the device, {weights:.1f} of them the weights in {dtype}.",
        f"Disk: {kept:.1f} GiB for the runs, and {weights:.1f} for the weights where they are not there yet; "
        f"{free:.1f} GiB are free.",
    ]

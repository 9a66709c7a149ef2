"""What each method costs: step, prediction and peak memory, as ratios to LoRA.

    python -m experiments efficiency --sizes micro 896
    python -m experiments efficiency --sizes qwen2.5-7b --device cuda --dtype bfloat16

Random weights: the cost does not depend on what a model knows. Each method is timed in turn with LoRA in one
process, so that a slow moment hits both, and written as soon as it is done: what is there is not repeated.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bara_pyro.cli.terminal import progress, say, show
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.core.svi import SVI
from bara_pyro.data import EncodedSplit, Task
from bara_pyro.errors import BaraError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import DTYPES
from bara_pyro.methods import METHODS, build
from bara_pyro.report import Column, Table
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import environment
from bara_pyro.runs.system import System, adapter_options, corrections_of, count_parameters
from bara_pyro.runs.train import what_is_fitted
from benchmarks.speed import device_clock, interleaved, peak_memory, peak_of_gpu
from benchmarks.systems import NUM_DATA, SIZES, TARGETS, Size, labels_of, make_batch, make_lm
from experiments.engine.arguments import command_line, option
from experiments.engine.results import Entry, Results, having, results_option, resumed
from experiments.page.parts import Part
from experiments.page.spec import entry_study

FIT_ROWS = 16  # that what is fitted after training is fitted on here
PREDICTED = 1024  # tokens of the batch that is predicted: 16 rows of the microworld's size, 8 of the next
COLUMNS = (
    Column("method", "method"),
    Column("parameters", "parameters", format=",d"),
    Column("step", "step", format=".2f"),
    Column("memory", "memory", format=".2f"),
    Column("point", "S = 0", format=".2f"),
    Column("draws", "S = 10", format=".1f"),
)


class RandomSystem(System):
    """A method on a random language model and random rows."""

    rows: EncodedSplit

    def split(self, name: str) -> EncodedSplit:
        """Return the random rows, under the name of any split."""
        return self.rows


@dataclass
class Contestant:
    """What is timed of a method."""

    parameters: int
    step: Callable[[], object]
    predict: Callable[[int], Tensor]


def contestant(name: str, size: Size, backbone: Backbone) -> Contestant:
    """Build a method, once to train and once to predict: what is fitted after training is not trained on."""
    config = load_config(overrides={"method": name, "adapter.target_modules": TARGETS, "train.steps": 1000})
    rows = max(1, PREDICTED // size.tokens)
    batch, many = (make_batch(size, n).to(backbone.device) for n in (size.rows, rows))

    def started() -> tuple[AdaptedLM, SiteGuide, SVI]:
        torch.manual_seed(0)
        model, guide = build(config.method, backbone, NUM_DATA, adapter_options(config))
        svi = METHODS[name].svi(model, guide, config.train, config.method)
        svi.step(batch)
        return model, guide, svi

    model, guide, svi = started()
    parameters = count_parameters(model) + count_parameters(guide)
    finish = METHODS[name].finish
    if finish is not None:
        model, guide, _ = started()
        task = Task("random", tuple("abcd"))
        system = RandomSystem(
            config, backbone, task, batch.answer_ids, model, guide, corrections_of(config, model)
        )
        system.rows = random_split(size)
        finish(what_is_fitted(system))
    return Contestant(
        parameters, lambda: svi.step(batch), lambda samples: predict(model, guide, many, samples=samples)
    )


def random_split(size: Size) -> EncodedSplit:
    """Return rows with the tokens of `make_batch`."""
    batch = make_batch(size, FIT_ROWS)
    tokens = [ids[mask].tolist() for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)]
    return EncodedSplit(tuple(tokens), tuple(labels_of(batch).tolist()), batch.ids, pad_id=0)


def measure(name: str, size: Size, backbone: Backbone, device: str, rounds: int) -> dict[str, Any]:
    """Return parameters, MiB and median seconds of a method and, measured in turn with it, of LoRA.

    Returns:
        `parameters`; `memory` (MiB of a step); `step`, `point` (S = 0), `draws` (S = 10) in seconds; and
        `lora`, its `memory`, `step` and `point`, also timed in turn with `draws`. Or why it `failed`.
    """
    try:
        pair = {"own": contestant(name, size, backbone), "lora": contestant("lora", size, backbone)}
    except BaraError as error:
        return {"failed": str(error)}
    own, lora = pair.values()
    clock = device_clock(device)
    step = interleaved({key: c.step for key, c in pair.items()}, rounds, 2, clock)
    point = interleaved({key: partial(c.predict, 0) for key, c in pair.items()}, rounds, 2, clock)
    calls = {"own": partial(own.predict, 10), "lora": partial(lora.predict, 0)}
    draws = interleaved(calls, max(2, rounds // 4), 1, clock)
    peak = peak_of_gpu if device.startswith("cuda") else peak_memory
    memory = {key: peak(c.step) for key, c in pair.items()}
    return {
        "parameters": own.parameters,
        "memory": memory["own"],
        "step": step["own"],
        "point": point["own"],
        # Of LoRA's forward at that moment, in the seconds of its forward beside S = 0.
        "draws": draws["own"] / draws["lora"] * point["lora"],
        "lora": {"memory": memory["lora"], "step": step["lora"], "point": point["lora"]},
    }


def ratios(found: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return the rows of the table: each cost divided by LoRA's, that of draws by LoRA's one forward."""
    return [
        {"method": costs["method"], "parameters": costs["parameters"]}
        | {key: costs[key] / costs["lora"][key] for key in ("step", "memory", "point")}
        | {"draws": costs["draws"] / costs["lora"]["point"]}
        for costs in found
        if "failed" not in costs
    ]


def run(size: str, args: Namespace) -> list[Entry]:
    """Measure the methods of a size that have not been measured alike, writing each as soon as it is done."""
    about = {"device": args.device, "dtype": args.dtype, "rounds": args.rounds, "size": size}
    about["environment"] = environment()
    results = resumed("efficiency", args.out, {})
    for key, entry in list(results.entries.items()):
        same_place = (entry["size"], entry["device"]) == (size, args.device)
        if same_place and any(entry[name] != value for name, value in about.items()):
            del results.entries[key]
    keys = {name: f"{size} {args.device} {name}" for name in args.methods}
    missing = [name for name in args.methods if keys[name] not in results.entries]
    if missing:
        backbone = Backbone(make_lm(SIZES[size], args.device, DTYPES[args.dtype]))
        with progress(size, len(missing)) as advance:
            for name in missing:
                advance(0, name)
                found = measure(name, SIZES[size], backbone, args.device, args.rounds)
                results.add(keys[name], {"method": name, **about, **found})
                advance(1, found.get("failed", ""))
    return [results.entries[key] for key in keys.values()]


def parts(results: Results) -> list[Part]:
    """Return a table a size and device."""
    tables: list[Part] = []
    entries = results.entries.values()
    for size, device in dict.fromkeys((entry["size"], entry["device"]) for entry in entries):
        found = having(entries, size=size, device=device)
        about = found[0]["environment"]
        caption = f"{size}, {found[0]['dtype']}, {device} ({about['gpu'] or about['machine']})"
        tables.append(Table(COLUMNS, ratios(found), caption))
    return tables


def facts(results: Results) -> dict[str, Any]:
    """Return what the question names."""
    rounds = sorted({entry["rounds"] for entry in results.entries.values()})
    return {"rounds": " to ".join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))}


def main() -> None:
    """Measure, print and keep."""
    parser = command_line(__doc__)
    add = parser.add_argument
    add("--sizes", **option(["micro", "896"], "shapes", choices=SIZES))
    add("--methods", **option([*METHODS], "to measure", choices=sorted(METHODS)))
    add("--device", **option("cpu", "cpu or cuda"))
    add("--dtype", **option("float32", "of the frozen weights", choices=DTYPES))
    add("--rounds", **option(20, "timed calls of each"))
    results_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for size in args.sizes:
        found = run(size, args)
        show(Table(COLUMNS, ratios(found), f"{size}, {args.device}: ratios to LoRA's step, memory, forward"))
        for costs in found:
            if "failed" in costs:
                say(f"{costs['method']}: {costs['failed']}")


STUDY = entry_study(
    "What does BaRA cost?",
    """\
Ratios to LoRA: training step, memory above the frozen model, and one forward pass with S = 0. S = 10 is the
ratio to the same single pass. Medians of {rounds} calls on random weights, each method timed in turn with
LoRA. LoRA is timed with itself to show the noise. S = 10 was timed with a quarter of the calls.
""",
    main,
    parts,
    facts=facts,
)

"""Train, test and record one run of the plan; what goes wrong in it becomes its record."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch

from bara_pyro.data import Task, answer_token_ids, encode_labels, first_rows, load_task
from bara_pyro.data.reply_tasks import ReplyTask, load_replies
from bara_pyro.diagnostics.gates.sparsity import gate_sparsity
from bara_pyro.errors import BaraError, ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import load_backbone
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import evaluate_system, system_gates
from bara_pyro.runs.steps import train_seconds
from bara_pyro.runs.system import System, build_system, find_device
from bara_pyro.runs.train import train
from experiments.engine.provenance import code_state
from experiments.paper import alignment
from experiments.paper.prompts import with_prompts
from experiments.paper.protocol import DATASETS, PaperRun, Settings, run_settings

Record = dict[str, Any]
SPARSITY_ROWS = 256
SCORES = ("acc", "ece", "nll", "brier", "n")


@dataclass(frozen=True)
class Setup:
    """What all runs of a command share.

    Attributes:
        model: name or folder of the language model.
        out: folder of all results.
        data: folder of the rows in the hub's columns; None: the hub.
        prompt: name of the prompts (`experiments.paper.prompts.PROMPTS`).
        device: where to compute.
        train_rows, test_rows: the most rows of a data set; None: those of the protocol.
        judge, replies, new_tokens: reward model of replies, how many a prompt, and the most tokens of one.
        typed: dotted settings that were typed; they take the place of any other.
    """

    model: str
    out: Path
    data: Path | None = None
    prompt: str = "bayesian-peft"
    device: str = "cpu"
    train_rows: int | None = None
    test_rows: int | None = None
    judge: str = alignment.JUDGE
    replies: int = alignment.REPLIES
    new_tokens: int = alignment.NEW_TOKENS
    typed: Settings = field(default_factory=dict)

    def settings(self, run: PaperRun) -> dict[str, Any]:
        """Return the dotted settings of a run."""
        place = {"backbone.name": self.model, "backbone.device": self.device}
        return {**run_settings(run, dict(self.typed)), **place}

    def limits(self) -> dict[str, Any]:
        """Return what is not the protocol's beside the typed settings."""
        prompt = None if self.prompt == "bayesian-peft" else self.prompt
        found = {"train_rows": self.train_rows, "test_rows": self.test_rows, "prompt": prompt}
        return {key: value for key, value in found.items() if value is not None}

    def said(self) -> dict[str, Any]:
        """Return what results depend on, to be the same when they are resumed."""
        names = ("model", "prompt", "train_rows", "test_rows", "judge", "replies", "new_tokens")
        return {name: getattr(self, name) for name in names} | {"settings": dict(self.typed)}


@dataclass(frozen=True)
class PaperJob:
    """A run to complete, as a launcher takes it."""

    run: PaperRun
    setup: Setup
    before: Record

    @property
    def gpus(self) -> int:
        """Number of GPUs that it needs for itself."""
        return int(self.setup.device.startswith("cuda"))

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.setup.out / "runs" / self.run.name

    @property
    def about(self) -> Record:
        """What its record says of it, whatever becomes of it."""
        run, settings = self.run, self.setup.settings(self.run)
        kept = {key: value for key, value in sorted(settings.items()) if not key.startswith("backbone.")}
        place = {"run": run.name, "arm": run.arm, "variant": run.variant, "task": run.task, "seed": run.seed}
        return place | {"settings": kept}


def lacking(run: PaperRun, record: Record | None) -> bool:
    """Return whether a run is still to be done, or to be tested on a further data set."""
    if not record or "failed" in record:
        return True
    return bool(set(run.shifted) - set(record["shifted"])) or (run.gates and "gates" not in record)


@lru_cache(maxsize=1)
def language_model(name: str, dtype: str, device: str) -> Backbone:
    """Return the language model, which the runs of a process share."""
    gc.collect()
    return load_backbone(name, dtype=dtype, device=find_device(device))


def load_rows(setup: Setup, name: str) -> Task | ReplyTask:
    """Return a data set with the prompts and at most the numbers of rows of the setup."""
    load = load_replies if name == alignment.TASK else load_task
    task: Any = load(name, setup.data)
    kept = min(DATASETS[name].train, setup.train_rows or len(task.train))
    task = replace(task, train=task.train[:kept], test=task.test[: setup.test_rows])
    return with_prompts(task, setup.prompt) if isinstance(task, Task) else cast(ReplyTask, task)


def load_system(job: PaperJob) -> System:
    """Return the system of a run with its rows, not trained yet."""
    config = load_config(overrides=job.setup.settings(job.run))
    c = config.backbone
    return build_system(config, language_model(c.name, c.dtype, c.device), load_rows(job.setup, job.run.task))


def on_rows(system: System, setup: Setup, name: str) -> System:
    """Return a system with the rows of another data set, to be tested on."""
    c = system.config
    rows = load_rows(setup, name)
    task = encode_labels(cast(Task, rows), system.backbone.tokenizer, c.task.labels)
    config = c.model_copy(update={"task": c.task.model_copy(update={"name": name})})
    ids = answer_token_ids(system.backbone.tokenizer, task.labels)
    return replace(system, config=config, task=task, answer_ids=ids)


def work(job: PaperJob) -> Record:
    """Complete a run and return its record; never raises. What a launcher maps over the jobs."""
    try:
        return job.about | _completed(job)
    except Exception as error:  # noqa: BLE001 - one run that fails does not stop the others
        said = str(error) if isinstance(error, BaraError) else f"{type(error).__name__}: {error}"
        return job.about | {"failed": " ".join(said.split())}


def _completed(job: PaperJob) -> Record:
    run, setup = job.run, job.setup
    if run.task == alignment.TASK and (missing := alignment.missing(setup.data, setup.judge)):
        raise ConfigError("; ".join(missing))
    system = load_system(job)
    others = {name: on_rows(system, setup, name) for name in run.shifted}
    for tested in (system, *others.values()):
        tested.encoded("test")  # a row that cannot be read is an error now, not after training
    device = system.backbone.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    train(system, job.folder, resume=True)
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    before = {} if "failed" in job.before else job.before
    record = before or _tested(system, job) | {"peak_gib": peak}
    record["shifted"] = dict(before.get("shifted", {}))
    for name, other in others.items():
        if name not in record["shifted"]:
            report = evaluate_system(other, job.folder / "evaluation" / name)
            record["shifted"][name] = _scores(report)
    if run.gates:
        record["gates"] = _gates(system)
    return record


def _tested(system: System, job: PaperJob) -> Record:
    report, setup = evaluate_system(system, job.folder), job.setup
    replied = {}
    if system.conversations and setup.data:
        how = (setup.judge, setup.replies, setup.new_tokens, setup.test_rows)
        replied = alignment.looked_at(system, setup.data, *how)
    rows = system.conversations or system.task
    return {
        **replied,
        "scores": _scores(report),
        "sparsity": report["sparsity"],
        "parameters": report["parameters"]["trainable"],
        "steps": system.config.train.steps,
        "rows": {"train": len(rows.train), "test": len(rows.test)},
        "notes": report["notes"],
        "seconds": {"train": train_seconds(job.folder), "evaluate": report["wall_clock_evaluate_s"]},
        "environment": report["environment"],
        "code": code_state(),
    }


def _scores(report: Mapping[str, Any]) -> Record:
    """Return the scores for each number of draws; accuracy and ECE in percent, NLL in nats."""
    metrics = report["metrics"].items()
    return {s: {key: found[key] for key in SCORES if key in found} for s, found in metrics}


def _gates(system: System) -> dict[str, Any]:
    """Return the share (percent) of gates below 0.1, one draw, in the value projections at the last token."""
    modules = [t.path for t in system.model.targets if t.path.endswith("v_proj")]
    rows = first_rows(system.split("test"), SPARSITY_ROWS)
    found = gate_sparsity(system_gates(system, rows, 1, modules=modules), 0.1)
    layers = {gate: shares.tolist() for gate, shares in found.by_module.items()}
    return {**{gate: float(share) for gate, share in found.overall.items()}, "layers": layers}

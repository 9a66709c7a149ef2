"""The runs of the paper's tables, as the sweep takes them: their rows, and what is measured beside scores."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

import torch

from bara_pyro.data import Task, first_rows, load_task
from bara_pyro.data.reply_tasks import ReplyTask, load_replies
from bara_pyro.diagnostics.sparsity import gate_sparsity
from bara_pyro.errors import ConfigError
from bara_pyro.runs.evaluate import system_gates
from bara_pyro.runs.system import System, build_system
from experiments.engine.record import Record, on_task
from experiments.engine.sweep import Run, shared_backbone
from experiments.paper import alignment
from experiments.paper.prompts import with_prompts
from experiments.paper.protocol import DATASETS, PaperRun, Settings, run_settings

SPARSITY_ROWS = 256


@dataclass(frozen=True)
class Setup:
    """What all runs of a command share.

    Attributes:
        model: name or folder of the language model.
        out: folder of all results.
        data_dir: folder of the rows in the hub's columns; None: the hub.
        prompt: name of the prompts (`experiments.paper.prompts.PROMPTS`).
        device: where to compute.
        train_rows, test_rows: the most rows of a data set; None: those of the protocol.
        judge, replies, new_tokens, taxed: see `alignment.Replies`.
        typed: dotted settings that were typed; they take the place of any other.
    """

    model: str
    out: Path
    data_dir: Path | None = None
    prompt: str = "bayesian-peft"
    device: str = "cpu"
    train_rows: int | None = None
    test_rows: int | None = None
    judge: str = alignment.Replies.judge
    replies: int = alignment.Replies.replies
    new_tokens: int = alignment.Replies.new_tokens
    taxed: tuple[str, ...] = alignment.Replies.taxed
    typed: Settings = field(default_factory=dict)

    def settings(self, run: PaperRun) -> dict[str, Any]:
        """Return the dotted settings of a run."""
        place = {"backbone.name": self.model, "backbone.device": self.device}
        return {**run_settings(run, dict(self.typed)), **place}

    def job(self, run: PaperRun) -> "PaperJob":
        """Return a run as the sweep takes it."""
        return PaperJob(self.settings(run), self.out / "runs", run.shifted, run=run, setup=self)

    def limits(self) -> dict[str, Any]:
        """Return what is not the protocol's beside the typed settings."""
        names = {"train_rows", "test_rows", "prompt", "judge", "replies", "new_tokens", "taxed"}
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name in names}
        return {f.name: own[f.name] for f in fields(self) if f.name in names and own[f.name] != f.default}

    def asked(self) -> alignment.Replies:
        """Return what is asked of a system that learnt replies."""
        return alignment.Replies(self.judge, self.replies, self.new_tokens, self.taxed, self.test_rows)

    def said(self) -> dict[str, Any]:
        """Return what results depend on, to be the same when they are resumed."""
        names = ("model", "prompt", "train_rows", "test_rows", "judge", "replies", "new_tokens")
        own = {name: getattr(self, name) for name in names}
        return own | {"taxed": list(self.taxed), "settings": dict(self.typed)}


@dataclass(frozen=True, kw_only=True)
class PaperJob(Run):
    """A run of the paper's tables."""

    run: PaperRun
    setup: Setup

    @property
    def name(self) -> str:
        """The name of its folder and of its record."""
        return self.run.name

    @property
    def label(self) -> str:
        """What it is called in messages."""
        return self.run.label

    def identity(self) -> Record:
        """Return the part of its record that says which run it is."""
        return super().identity() | {"run": self.name, "arm": self.run.arm, "variant": self.run.variant}

    def system(self) -> System:
        """Return what is to be trained, with its rows; memory is counted from here on."""
        replies = self.run.task == alignment.TASK
        if replies and (missing := alignment.missing(self.setup.data_dir, self.setup.asked())):
            raise ConfigError("; ".join(missing))
        backbone = shared_backbone(self.config)
        if backbone.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(backbone.device)
        system = build_system(self.config, backbone, load_rows(self.setup, self.run.task))
        for name in self.shifted:
            self.on(system, name).encoded("test")  # a row that cannot be read is an error before training
        return system

    def on(self, system: System, name: str) -> System:
        """Return the fitted system with the rows of a shifted data set."""
        return on_task(system, name, cast(Task, load_rows(self.setup, name)))

    def measured(self, system: System) -> Record:
        """Return the scores, and the memory that training took (GiB), the sparsity of gates, and replies."""
        device, setup = system.backbone.device, self.setup
        cuda = device.type == "cuda"
        found: Record = {"peak_gib": torch.cuda.max_memory_allocated(device) / 2**30 if cuda else None}
        found |= super().measured(system)
        if self.run.gates:
            found["gates"] = _gates(system)
        if system.conversations and setup.data_dir:
            found |= alignment.looked_at(system, self.out / "replies", setup.data_dir, setup.asked())
        return found


def load_rows(setup: Setup, name: str) -> Task | ReplyTask:
    """Return a data set with the prompts and at most the numbers of rows of the setup."""
    load = load_replies if name == alignment.TASK else load_task
    task: Any = load(name, setup.data_dir)
    kept = min(DATASETS[name].train, setup.train_rows or len(task.train))
    task = replace(task, train=task.train[:kept], test=task.test[: setup.test_rows])
    return with_prompts(task, setup.prompt) if isinstance(task, Task) else cast(ReplyTask, task)


def _gates(system: System) -> Mapping[str, Any]:
    """Return the share (percent) of gates below 0.1, one draw, in the value projections at the last token."""
    modules = [t.path for t in system.model.targets if t.path.endswith("v_proj")]
    rows = first_rows(system.split("test"), SPARSITY_ROWS)
    found = gate_sparsity(system_gates(system, rows, 1, modules=modules), 0.1)
    layers = {gate: shares.tolist() for gate, shares in found.by_module.items()}
    return {**{gate: float(share) for gate, share in found.overall.items()}, "layers": layers}

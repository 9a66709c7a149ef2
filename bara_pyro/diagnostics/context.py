"""The data that all diagnostics of a run share: the run, the inspected rows and their posterior draws."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from bara_pyro.core.gate_draws import GateDraws, chosen_modules
from bara_pyro.data import EncodedSplit, first_rows
from bara_pyro.diagnostics import Result
from bara_pyro.diagnostics.full_draws import FullDraws, full_draws
from bara_pyro.runs.evaluate import draw, system_gates, true_probabilities
from bara_pyro.runs.evaluation_files import is_evaluated
from bara_pyro.runs.steps import train_seconds
from bara_pyro.runs.stored import stored_lr, stored_step
from bara_pyro.runs.system import System, parameter_counts

FOLDER = "report"


@dataclass(frozen=True)
class Options:
    """How many rows and draws an inspection uses; the numbers of all draws go with `samples`."""

    rows: int = 256  # test rows
    samples: int = 50  # posterior draws of gates and predictions; 0: none, if not deep
    tau: float = 0.1  # a gate below this threshold counts as off
    texts: tuple[str, ...] = ()  # texts for the token maps; nine short default texts if empty
    deep: bool = True  # also inspect gates, draws and the posterior, not only accuracy and calibration
    thorough: bool = True  # with `deep`: also PSIS-LOO on training rows, and draws from the prior

    def longer(self) -> dict[str, "Options"]:
        """Return the options of inspections that compute more, by their name: "deep" and "thorough"."""
        kinds = {"deep": (True, False), "thorough": (True, True)}
        samples = self.samples or Options().samples
        return {
            name: replace(self, samples=samples, deep=deep, thorough=thorough)
            for name, (deep, thorough) in kinds.items()
            if (deep, thorough) > (self.deep, self.deep and self.thorough)
        }

    @property
    def nested(self) -> int:
        """Draws of the global gates, and of the local gates for each of them."""
        return max(2, round((2 * self.samples) ** 0.5))

    @property
    def train_rows(self) -> int:
        """Training rows for PSIS-LOO."""
        return max(8, self.rows // 2)


@dataclass(frozen=True)
class Context:
    """A fitted run with the inspected rows and their posterior draws."""

    folder: Path  # folder of the run
    system: System  # the fitted run
    rows: EncodedSplit  # the first rows of the split that the run is evaluated on
    labels: Tensor  # long, `n`
    truth: Tensor  # float64, `n x C`: true answer probabilities; NaN for unknown ones
    log_probs: Tensor  # float64, `S x n x C`: log-probabilities of the answers under posterior draws
    # The gates of these draws, with their KL if random; activations for LoRA; None for other methods.
    gates: GateDraws | None
    options: Options
    out: Path  # folder of the report

    @property
    def has_gates(self) -> bool:
        """Whether the method has gates."""
        return self.system.model.gates is not None

    @property
    def drawn(self) -> FullDraws | None:
        """The gates with their KL, if they are random."""
        return self.gates if isinstance(self.gates, FullDraws) else None


class RunFacts(Result):
    """The method, task and training of a run."""

    method: str
    backbone: str  # name of the language model
    task: str
    split: str  # the inspected split
    rows: int  # number of inspected rows
    train_rows: int
    r: int  # rank of the adapters
    modules: int  # number of adapted modules
    trainable: int  # number of trainable parameters
    frozen: int  # number of frozen parameters
    steps: int
    lr: float  # learning rate
    seed: int
    train_seconds: float | None  # None if unknown
    config_hash: str


def is_random(system: System) -> bool:
    """Return whether a run has gates with a posterior, which most diagnostics draw from."""
    return system.model.gates is not None and system.guide.stochastic


def look(folder: Path, system: System, options: Options, out: Path | None = None) -> Context:
    """Return the context of a run: its first test rows and their posterior draws.

    The folder of the report is by default `report` inside that of the run.
    """
    name = system.config.task.evaluate_on
    rows = first_rows(system.split(name), options.rows)
    gates: GateDraws | None = None
    model, seed = system.model, system.config.predict.seed
    if options.deep and is_random(system):
        gates = full_draws(system, system.guide, rows, options.samples, seed, chosen_modules(model))
    elif options.deep and (model.gates is not None or (model.has_activations and not model.latents)):
        gates = system_gates(system, rows, options.samples)
    if gates is not None:
        log_probs = gates.log_probs
    elif options.samples or not is_evaluated(folder, system.config.hash):
        log_probs = draw(system, rows, options.samples)
    else:
        log_probs = torch.empty(0, len(rows), len(system.task.labels), dtype=torch.float64)
    truth = true_probabilities(system, rows, name)
    return Context(
        folder,
        system,
        rows,
        torch.tensor(rows.labels),
        truth,
        log_probs,
        gates,
        options,
        out or folder / FOLDER,
    )


def run_facts(c: Context) -> RunFacts:
    """Return the method, task and training of a run."""
    config, counts = c.system.config, parameter_counts(c.system)
    return RunFacts(
        method=config.method.name,
        backbone=c.system.backbone.name,
        task=c.system.task.name,
        split=config.task.evaluate_on,
        rows=len(c.rows),
        train_rows=c.system.model.num_data,
        r=config.adapter.r,
        modules=len(c.system.model.targets),
        trainable=counts["trainable"],
        frozen=counts["frozen"],
        steps=stored_step(c.folder) or config.train.total_steps,
        lr=stored_lr(c.folder, config),
        seed=config.seed,
        train_seconds=train_seconds(c.folder),
        config_hash=config.hash,
    )

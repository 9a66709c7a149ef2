"""What all diagnostics of a run share: the run, the rows that are looked at, the draws made of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bara_pyro.core.gate_draws import GateDraws
from bara_pyro.data import EncodedSplit, first_rows
from bara_pyro.runs.evaluate import draw, system_gates, true_probabilities
from bara_pyro.runs.system import System

FOLDER = "report"


@dataclass(frozen=True)
class Options:
    """How much is looked at."""

    rows: int = 256  # test rows
    samples: int = 50  # posterior draws of gates and predictions
    nested: int = 10  # draws of the global gates, and for each as many of the local ones
    token_samples: int = 100  # draws of the token maps
    bound_draws: int = 50  # draws of the PAC-Bayes bounds, for each row
    train_rows: int = 128  # training rows for PSIS-LOO
    train_draws: int = 100  # draws for it; Pareto's k needs a tail to fit
    prior_draws: int = 50  # draws of the gates from each prior
    tau: float = 0.1  # threshold below which a gate counts as off
    cap: float = 4.6  # cap of the NLL in the bounds, nats
    texts: tuple[str, ...] = ()  # for the token maps; nine short ones if there are none
    deep: bool = True  # gates, draws and the posterior, beside how far the probabilities are right


def options(rows: int, samples: int, tau: float, texts: Sequence[str] = (), *, deep: bool = True) -> Options:
    """Return options whose every number of draws goes with `samples`, and with it the time that it takes."""
    return Options(
        rows=rows,
        samples=samples,
        nested=max(2, round((2 * samples) ** 0.5)),
        token_samples=2 * samples,
        tau=tau,
        bound_draws=samples,
        train_rows=max(8, rows // 2),
        train_draws=2 * samples,
        prior_draws=samples,
        texts=tuple(texts),
        deep=deep,
    )


@dataclass(frozen=True)
class Context:
    """A run with the rows that are looked at."""

    folder: Path  # of the run
    system: System  # fitted
    rows: EncodedSplit  # of the split that the run is evaluated on
    labels: Tensor  # long, `n`
    truth: Tensor  # float64, `n x C`: the true answer probabilities; NaN where they are not known
    log_probs: Tensor  # float64, `S x n x C`: the answers' log-probabilities under posterior draws
    gates: GateDraws | None  # the gates behind them; for LoRA its activations; None for other methods
    options: Options  # how much is looked at
    out: Path  # where the report goes

    @property
    def has_gates(self) -> bool:
        """Whether there are gates to look at."""
        return self.system.model.gates is not None


def look(folder: Path, system: System, options: Options, out: Path | None = None) -> Context:
    """Draw what all parts need; the report goes to the run's subfolder `report` where `out` is None."""
    name = system.config.task.evaluate_on
    rows = first_rows(system.split(name), options.rows)
    gates = None
    model = system.model
    if options.deep and (model.gates is not None or (model.has_activations and not model.latents)):
        gates = system_gates(system, rows, options.samples)
    log_probs = draw(system, rows, options.samples) if gates is None else gates.log_probs
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

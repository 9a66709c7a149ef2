"""What was trained on what: the facts at the head of an inspection."""

from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.result import Result
from bara_pyro.runs.evaluate import parameter_counts
from bara_pyro.runs.train import train_seconds


class RunFacts(Result):
    """A run in figures.

    Attributes:
        method, backbone, task: their names.
        split: that is looked at; `rows`: how many of its rows.
        train_rows: rows that were trained on.
        r, modules: rank of the adapters, and how many there are.
        trainable, frozen: numbers of parameters.
        steps, lr, seed: of the training.
        train_seconds: what it took; None where that is not known.
        config_hash: of the settings.
    """

    method: str
    backbone: str
    task: str
    split: str
    rows: int
    train_rows: int
    r: int
    modules: int
    trainable: int
    frozen: int
    steps: int
    lr: float
    seed: int
    train_seconds: float | None
    config_hash: str


def run_facts(c: Context) -> RunFacts:
    """Return the facts of a run."""
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
        steps=config.train.steps,
        lr=config.train.lr,
        seed=config.seed,
        train_seconds=train_seconds(c.folder),
        config_hash=config.hash,
    )

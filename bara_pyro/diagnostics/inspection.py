"""The inspection of a run: the results of all diagnostics in one object that can be stored and read."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import ConfigDict, Field, model_validator

from bara_pyro.core.likelihood import require_answer_tokens
from bara_pyro.diagnostics.arviz.export import EXPORTED_ROWS, DrawnAnswers, export_draws
from bara_pyro.diagnostics.context import Context, Options, is_random, look
from bara_pyro.diagnostics.gates.rank_use import RankUse, rank_use
from bara_pyro.diagnostics.gates.tokens import TokenUse, token_use
from bara_pyro.diagnostics.parts import ADDED
from bara_pyro.diagnostics.posterior.predictive_scores import PredictiveScores, predictive_scores
from bara_pyro.diagnostics.posterior.trust import PosteriorTrust, posterior_trust
from bara_pyro.diagnostics.posterior.uncertainty_split import UncertaintySplit, uncertainty_split
from bara_pyro.diagnostics.result import Result
from bara_pyro.runs.evaluate import SPARSITY_DRAWS, SPARSITY_ROWS
from bara_pyro.runs.evaluation_files import is_evaluated, read_scores
from bara_pyro.runs.steps import train_seconds
from bara_pyro.runs.stored import stored_lr, stored_step
from bara_pyro.runs.system import System, parameter_counts
from bara_pyro.types import Json

SCHEMA = 3
DIAGNOSTICS: dict[str, Callable[[Context], Result | None]] = {
    "scores": predictive_scores,
    "rank": rank_use,
    "tokens": token_use,
    "uncertainty": uncertainty_split,
    "draws": export_draws,
    "posterior": posterior_trust,
}
"""Field of `Inspection` -> function that computes it, or returns None if it does not apply to the method."""
QUICK = ("scores",)
"""The diagnostics of an inspection with `deep=False`."""
THOROUGH = ("uncertainty",)
"""The diagnostics that need `thorough=True`."""


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


class Inspection(Result):
    """The results of an inspection; a part is None if it does not apply to the method or was not requested.

    Installed packages may add further fields (`bara_pyro.diagnostics.parts`).
    """

    model_config = ConfigDict(extra="allow")

    schema_version: int = SCHEMA
    run: RunFacts  # the inspected run
    options: Options  # numbers of rows and draws
    scores: PredictiveScores
    rank: RankUse | None
    tokens: TokenUse | None
    uncertainty: UncertaintySplit | None
    draws: DrawnAnswers | None
    posterior: PosteriorTrust | None
    # Option that computes more -> estimated seconds; None if the run has not been evaluated.
    longer: dict[str, float | None] = Field(default_factory=dict)
    seconds: dict[str, float]  # time of each part
    total_seconds: float  # total time, including the draws that the parts share
    peak_memory_mib: float | None  # peak memory of the process; None on Windows

    @model_validator(mode="before")
    @classmethod
    def _read_added(cls, values: Json) -> Json:
        """Read the fields of installed packages with their classes, and reject unknown names."""
        added = {name: ADDED.find(name).result for name in values.keys() - cls.model_fields.keys()}
        return values | {
            name: None if values[name] is None else kind.model_validate(values[name])
            for name, kind in added.items()
        }


def look_inside(
    folder: str | Path,
    system: System,
    options: Options | None = None,
    *,
    out: str | Path | None = None,
    on_part: Callable[[int], None] | None = None,
) -> Inspection:
    """Run the diagnostics on a run, and write its draws for ArviZ.

    With `deep=False` in the options only the diagnostics of `QUICK` run, and no draws are written.

    Args:
        folder: folder of the run.
        system: the run.
        options: numbers of rows and draws.
        out: folder for the draws; `report` inside the run's folder if None.
        on_part: called with 1 after each diagnostic.

    Raises:
        ConfigError: the run generates free text instead of choosing an answer.
        DataError: the split has no rows.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.context import Options
        >>> from bara_pyro.diagnostics.inspection import look_inside
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=20, out="runs/first")
        >>> _ = bp.evaluate(run, out="runs/first")
        >>> few = Options(rows=8, samples=4, texts=("in winter bimu keeps goats .",))  # quick
        >>> found = look_inside("runs/first", run, few)
        >>> found.run.method, found.run.modules, found.run.r
        ('bara-gate', 9, 8)
    """
    require_answer_tokens(system.model.likelihood, "Inspections")
    began = time.perf_counter()
    context = look(Path(folder), system, options or Options(), None if out is None else Path(out))
    results: Json = dict.fromkeys((*DIAGNOSTICS, *ADDED))
    seconds: dict[str, float] = {}
    for name in part_names(context.options):
        started = time.perf_counter()
        compute = DIAGNOSTICS[name] if name in DIAGNOSTICS else ADDED.find(name).compute
        results[name] = compute(context)
        seconds[name] = round(time.perf_counter() - started, 2)
        if on_part is not None:
            on_part(1)
    results |= {"run": run_facts(context), "options": context.options, "seconds": seconds}
    results["longer"] = {
        f"--{name}": estimated_seconds(context.folder, system, asked)
        for name, asked in context.options.longer().items()
        if name == "deep" or is_random(system)
    }
    results |= {"total_seconds": round(time.perf_counter() - began, 2), "peak_memory_mib": peak_memory()}
    return Inspection.model_validate(results)


def part_names(options: Options) -> tuple[str, ...]:
    """Return the names of the diagnostics to run."""
    if not options.deep:
        return QUICK
    return tuple(name for name in (*DIAGNOSTICS, *ADDED) if options.thorough or name not in THOROUGH)


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


def peak_memory() -> float | None:
    """Return the peak resident memory of the process in MiB; None on Windows, which does not report it."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


def estimated_seconds(folder: Path, system: System, options: Options) -> float | None:
    """Return the estimated seconds of an inspection, without the figures and the loading of the run.

    They are known for runs with random gates that have been evaluated; else None.
    """
    if not is_random(system) or not is_evaluated(folder, system.config.hash):
        return None
    stored = read_scores(folder)
    if not (took := stored.get("wall_clock_evaluate_s")):
        return None
    rows = max((scores["n"] for scores in stored["metrics"].values()), default=0)
    done = rows * sum(max(int(draws), 1) for draws in stored["metrics"])
    done += min(rows, SPARSITY_ROWS) * SPARSITY_DRAWS if stored.get("sparsity") else 0
    return float(took) / max(done, 1) * passes(options, rows, len(system.task.train))


def passes(o: Options, rows: int, train_rows: int) -> int:
    """Return how many rows times draws the language model has to read for an inspection with gates.

    `rows` and `train_rows` are the numbers of rows of the inspected split and of the training rows.
    """
    rows, train_rows = min(rows, o.rows), min(train_rows, o.train_rows)
    if not o.deep:
        return rows * (o.samples + 1)
    exported, deep = min(rows, EXPORTED_ROWS), rows * (1 + 2 * o.samples)
    return deep + (rows * o.nested**2 + (2 * train_rows + exported) * o.samples if o.thorough else 0)

"""Estimate the time of an inspection from the time that the run's evaluation took."""

from pathlib import Path

from bara_pyro.diagnostics.arviz.export import EXPORTED_ROWS
from bara_pyro.diagnostics.context import Options, is_random
from bara_pyro.diagnostics.posterior.collapse import GAMMAS
from bara_pyro.diagnostics.posterior.trust import FEW_ROWS, KL_DRAWS
from bara_pyro.runs.evaluate import SPARSITY_DRAWS, SPARSITY_ROWS
from bara_pyro.runs.evaluation_files import is_evaluated, read_scores
from bara_pyro.runs.system import System


def estimated_seconds(folder: Path, system: System, options: Options) -> float | None:
    """Return the estimated time of an inspection in seconds; None if it is unknown.

    It is known for runs with random gates that have been evaluated.

    The figures and the loading of the run, some seconds, are not counted.
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
    few, exported = min(rows, FEW_ROWS), min(rows, EXPORTED_ROWS)
    deep = rows * (1 + o.samples + o.bound_draws) + few * KL_DRAWS
    priors = exported * o.samples + len(GAMMAS) * few * o.prior_draws
    return deep + (rows * o.nested**2 + train_rows * o.train_draws + priors if o.thorough else 0)

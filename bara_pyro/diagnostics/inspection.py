"""The inspection of a run: every diagnostic's result, in one that can be stored and read back."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from bara_pyro.diagnostics.arviz.export import DrawnAnswers, export_draws
from bara_pyro.diagnostics.bounds.guarantees import Guarantees, guarantees
from bara_pyro.diagnostics.context import Context, Options, look
from bara_pyro.diagnostics.gates.rank_use import RankUse, rank_use
from bara_pyro.diagnostics.gates.tokens import TokenUse, token_use
from bara_pyro.diagnostics.posterior.predictive_scores import PredictiveScores, predictive_scores
from bara_pyro.diagnostics.posterior.trust import PosteriorTrust, posterior_trust
from bara_pyro.diagnostics.posterior.uncertainty_split import UncertaintySplit, uncertainty_split
from bara_pyro.diagnostics.result import Result
from bara_pyro.diagnostics.run_facts import RunFacts, run_facts
from bara_pyro.runs.system import System

SCHEMA = 2
DIAGNOSTICS: dict[str, Callable[[Context], Result | None]] = {
    "scores": predictive_scores,
    "rank": rank_use,
    "tokens": token_use,
    "uncertainty": uncertainty_split,
    "draws": export_draws,
    "posterior": posterior_trust,
    "bounds": guarantees,
}
"""The field of `Inspection` -> what computes it; None where a method has no such thing."""


class Inspection(Result):
    """All that was found in a run.

    Attributes:
        schema_version: of this layout.
        run: what was looked at.
        options: how much of it.
        scores, rank, tokens, uncertainty, draws, posterior, bounds: the results; None where a method has no
            such thing.
        seconds: what each took; `total_seconds` includes the drawing before them.
        peak_memory_mib: of the process; None on Windows, which does not tell.
    """

    schema_version: int = SCHEMA
    run: RunFacts
    options: Options
    scores: PredictiveScores
    rank: RankUse | None
    tokens: TokenUse | None
    uncertainty: UncertaintySplit | None
    draws: DrawnAnswers
    posterior: PosteriorTrust | None
    bounds: Guarantees | None
    seconds: dict[str, float]
    total_seconds: float
    peak_memory_mib: float | None


def look_inside(
    folder: Path,
    system: System,
    options: Options | None = None,
    *,
    on_part: Callable[[int], None] | None = None,
) -> Inspection:
    """Run every diagnostic on a run; the draws go to its subfolder `report`, for ArviZ.

    Args:
        folder: of the run.
        system: the run, read.
        options: how much to look at.
        on_part: called with 1 after each diagnostic.

    Raises:
        DataError: the split has no rows.
    """
    began = time.perf_counter()
    options = options or Options()
    context = look(folder, system, options)
    results: dict[str, Result | None] = {}
    seconds: dict[str, float] = {}
    for name, compute in DIAGNOSTICS.items():
        started = time.perf_counter()
        results[name] = compute(context)
        seconds[name] = round(time.perf_counter() - started, 2)
        if on_part is not None:
            on_part(1)
    total = round(time.perf_counter() - began, 2)
    return Inspection.model_validate(
        {
            "run": run_facts(context),
            "options": options,
            **results,
            "seconds": seconds,
            "total_seconds": total,
            "peak_memory_mib": peak_memory(),
        }
    )


def peak_memory() -> float | None:
    """Return the peak resident memory of the process, MiB; None on Windows, which does not tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)

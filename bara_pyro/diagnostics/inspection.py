"""The inspection of a run: all its results in one object that can be stored, and the page of them."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import ConfigDict, Field, model_validator

from bara_pyro.atomic import write_json, write_text
from bara_pyro.core.likelihood import require_answer_tokens
from bara_pyro.diagnostics import Result
from bara_pyro.diagnostics.context import FOLDER, Context, Options, RunFacts, is_random, look, run_facts
from bara_pyro.diagnostics.parts import ADDED
from bara_pyro.diagnostics.parts.draws import EXPORTED_ROWS, DrawnAnswers, export_draws, render_draws
from bara_pyro.diagnostics.parts.posterior import PosteriorTrust, posterior_trust, render_posterior
from bara_pyro.diagnostics.parts.rank import RankUse, rank_use, render_rank
from bara_pyro.diagnostics.parts.scores import PredictiveScores, predictive_scores, render_scores
from bara_pyro.diagnostics.parts.tokens import PAGE, TokenUse, render_tokens, token_page, token_use
from bara_pyro.diagnostics.parts.uncertainty import UncertaintySplit, render_uncertainty, uncertainty_split
from bara_pyro.durations import spoken
from bara_pyro.report.html import Block, Link, Paragraph, Points, Section, write_index
from bara_pyro.runs.evaluate import SPARSITY_DRAWS, SPARSITY_ROWS
from bara_pyro.runs.evaluation_files import is_evaluated, read_scores
from bara_pyro.runs.system import System
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

    With `deep=False` in the options only the scores are computed, and no draws are written.

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
    names = (*DIAGNOSTICS, *ADDED) if options.deep else ("scores",)
    return tuple(name for name in names if options.thorough or name != "uncertainty")


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


NUMBERS = "inspection.json"


def inspect_run(
    folder: str | Path,
    system: System,
    options: Options | None = None,
    *,
    out: str | Path | None = None,
    on_part: Callable[[int], None] | None = None,
) -> tuple[Path, list[str]]:
    """Inspect a run and write a report: a page, its figures, all numbers and the posterior draws.

    The files are index.html, tokens.html, one SVG file for each figure, inspection.json (all numbers, an
    `Inspection`) and posterior.nc (the draws, for ArviZ). With `deep=False` in the options the page covers
    accuracy and calibration only. Arguments and errors are those of `look_inside`; `on_part` is also called
    after the page.

    Returns:
        The path of the page, and the findings: a plain sentence for each section.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.diagnostics.context import Options
        >>> from bara_pyro.diagnostics.inspection import inspect_run
        >>> run = bp.train(task="micro-wgs", method="bara-gate", steps=2, limit=20, out="runs/first")
        >>> _ = bp.evaluate(run, out="runs/first")
        >>> few = Options(rows=8, samples=4, texts=("in winter bimu keeps goats .",))  # quick
        >>> page, sentences = inspect_run("runs/first", run, few)
        >>> str(page), len(sentences) > 3
        ('runs/first/report/index.html', True)
    """
    out = Path(folder) / FOLDER if out is None else Path(out)
    inspection = look_inside(folder, system, options, out=out, on_part=on_part)
    write_json(out / NUMBERS, inspection.model_dump(mode="json"))
    page, shown = write_page(inspection, out)
    if on_part is not None:
        on_part(1)
    return page, [part.plain for part in shown]


def write_page(found: Inspection, out: Path) -> tuple[Path, list[Section]]:
    """Write the page of an inspection, its token maps and its figures; return its path and its sections.

    Nothing is computed anew; the folder must contain the draws of the inspection.
    """
    shown = sections(found, out)
    if found.tokens is not None:
        token_page(found.tokens, out / PAGE, f"Token maps of {found.run.method}")
    for picture in (picture for part in shown for picture in part.pictures):
        write_text(out / f"{picture.name}.svg", picture.file)
    title = f"Inside {found.run.method} on {found.run.task}"
    return write_index(out, title, _head(found, shown), shown), shown


def sections(found: Inspection, out: Path) -> list[Section]:
    """Return the sections of the page, one for each part that the method has."""
    added = found.model_extra or {}
    return [
        render_scores(found.run, found.scores),
        *([render_rank(found.rank)] if found.rank else []),
        *([render_tokens(found.tokens)] if found.tokens else []),
        *([render_uncertainty(found.uncertainty)] if found.uncertainty else []),
        *([render_draws(found.draws, out)] if found.draws else []),
        *([render_posterior(found.posterior)] if found.posterior else []),
        *(ADDED[name].render(value) for name, value in added.items() if value is not None),
    ]


def _head(inspection: Inspection, shown: list[Section]) -> list[Block]:
    """Return the head of the page: a summary of each section, and the other files of the report."""
    run, numbers = inspection.run, Link(NUMBERS, NUMBERS)
    points = [Paragraph([Link(s.title, f"#{s.id}"), f": {s.plain}"]) for s in shown]
    beside: list[str | Link] = ["Files in this folder: ", numbers, " (all numbers), "]
    if inspection.draws is not None:
        beside += [Link(inspection.draws.file, inspection.draws.file), " (posterior draws, for ArviZ), "]
    blocks: list[Block] = [
        f"Report on {run.method}, trained on {run.task} with the language model {run.backbone}.",
        Points(points),
        Paragraph([*beside, "and an SVG file for each figure."]),
    ]
    more = {
        "--deep": "gates, tokens, draws, posterior and bounds",
        "--thorough": "sources of the uncertainty, leave-one-out on training rows, and draws from the prior",
    }
    blocks += [
        f"Not computed: {more[option]}. Add {option}{_about(seconds)}."
        for option, seconds in inspection.longer.items()
    ]
    if not inspection.scores.looked_at:
        blocks.append(
            "All scores are those of the run's evaluation. For another number of posterior draws S run bara "
            "inspect RUN --samples S."
        )
    return blocks


def _about(seconds: float | None) -> str:
    return "" if seconds is None else f" (about {spoken(seconds)})"

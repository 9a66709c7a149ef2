"""The page of an inspection and the files beside it: `bara inspect`."""

from collections.abc import Callable
from pathlib import Path

from bara_pyro.atomic import write_json, write_text
from bara_pyro.diagnostics.context import FOLDER, Options
from bara_pyro.diagnostics.inspection import Inspection, look_inside
from bara_pyro.diagnostics.page.gate_plots import render_draws
from bara_pyro.diagnostics.page.render_posterior import render_posterior
from bara_pyro.diagnostics.page.render_rank import render_rank
from bara_pyro.diagnostics.page.render_scores import render_scores
from bara_pyro.diagnostics.page.render_tokens import PAGE, render_tokens, token_page
from bara_pyro.diagnostics.page.render_uncertainty import render_uncertainty
from bara_pyro.diagnostics.parts import ADDED, Shown
from bara_pyro.durations import spoken
from bara_pyro.report import Link, Paragraph, Points, write_index
from bara_pyro.report.blocks import Block
from bara_pyro.runs.system import System

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
        >>> from bara_pyro.diagnostics.page.page import inspect_run
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


def write_page(found: Inspection, out: Path) -> tuple[Path, list[Shown]]:
    """Write the page of an inspection, its token maps and its figures; return its path and its sections.

    Nothing is computed anew; the folder must contain the draws of the inspection.
    """
    shown = sections(found, out)
    if found.tokens is not None:
        token_page(found.tokens, out / PAGE, f"Token maps of {found.run.method}")
    for picture in (picture for part in shown for picture in part.pictures):
        write_text(out / f"{picture.name}.svg", picture.file)
    title = f"Inside {found.run.method} on {found.run.task}"
    return write_index(out, title, _head(found, shown), [part.section for part in shown]), shown


def sections(found: Inspection, out: Path) -> list[Shown]:
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


def _head(inspection: Inspection, shown: list[Shown]) -> list[Block]:
    """Return the head of the page: a summary of each section, and the other files of the report."""
    run, numbers = inspection.run, Link(NUMBERS, NUMBERS)
    points = [Paragraph([Link(s.section.title, f"#{s.section.id}"), f": {s.plain}"]) for s in shown]
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

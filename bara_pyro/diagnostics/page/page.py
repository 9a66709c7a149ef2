"""The inspection of a run: its parts one after the other, one page, and the files behind it."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bara_pyro.diagnostics.page.certificate import certificate
from bara_pyro.diagnostics.page.context import Context, Options, Part, look
from bara_pyro.diagnostics.page.draws import FILE, draws
from bara_pyro.diagnostics.page.posterior import posterior
from bara_pyro.diagnostics.page.rank import where_the_rank_goes
from bara_pyro.diagnostics.page.tokens import tokens
from bara_pyro.diagnostics.page.trained import trained
from bara_pyro.diagnostics.page.uncertainty import uncertainty
from bara_pyro.report import Picture, write_index
from bara_pyro.runs.store import SCHEMA, atomic_write, write_json
from bara_pyro.runs.system import System

PARTS: dict[str, Callable[[Context], Part | None]] = {
    "trained": trained,
    "rank": where_the_rank_goes,
    "tokens": tokens,
    "uncertainty": uncertainty,
    "draws": draws,
    "posterior": posterior,
    "certificate": certificate,
}
NUMBERS = "inspection.json"


def inspect_run(
    folder: Path,
    system: System,
    options: Options | None = None,
    *,
    on_part: Callable[[int], None] | None = None,
) -> tuple[Path, list[str]]:
    """Look inside a run and write what is found.

    Args:
        folder: of the run; the files go to its subfolder `report`: index.html, a PNG a figure, tokens.html,
            inspection.json (every number) and posterior.nc (draws, for ArviZ).
        system: the run, read.
        options: how much to look at.
        on_part: called with 1 after each of the parts and after the page.

    Returns:
        The page, and the findings.

    Raises:
        DataError: the split has no rows.
    """
    began = time.perf_counter()
    context = look(folder, system, options or Options())
    parts: dict[str, Part] = {}
    seconds: dict[str, float] = {}
    for name, make in PARTS.items():
        started = time.perf_counter()
        part = make(context)
        seconds[name] = round(time.perf_counter() - started, 2)
        if part is not None:
            parts[name] = part
            for title, picture in part.pictures.items():
                _save(picture, context.out / f"{title}.png")
        if on_part is not None:
            on_part(1)
    findings = [sentence for part in parts.values() for sentence in part.findings]
    page = _page(context, parts, findings)
    cost = {"total_seconds": round(time.perf_counter() - began, 2), **peak_memory()}
    write_json(context.out / NUMBERS, _numbers(context, parts, findings, seconds) | cost)
    if on_part is not None:
        on_part(1)
    return page, findings


def _save(picture: Picture, path: Path) -> None:
    atomic_write(path, lambda file: file.write(picture.png))


def peak_memory() -> dict[str, float]:
    """Return the peak resident memory of the process, MiB; nothing on Windows, which does not tell."""
    try:
        import resource
    except ImportError:
        return {}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_memory_mib": round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)}


def _numbers(
    c: Context, parts: dict[str, Part], findings: list[str], seconds: dict[str, float]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "config_hash": c.system.config.hash,
        "options": vars(c.options),
        "findings": findings,
        "seconds": seconds,
        "parts": {name: part.data for name, part in parts.items()},
    }


def _page(c: Context, parts: dict[str, Part], findings: list[str]) -> Path:
    config = c.system.config
    text = [
        f"{config.method.name}, trained on {c.system.task.name} ({c.system.backbone.name}), looked at on "
        f"{len(c.rows)} rows. Every number is in {NUMBERS}, the draws are in {FILE} (ArviZ), the figures "
        "beside this page.",
        "What was found:",
        *(f"• {sentence}" for sentence in findings),
    ]
    title = f"Inside {config.method.name} on {c.system.task.name}"
    return write_index(c.out, title, text=text, sections=[part.section for part in parts.values()])

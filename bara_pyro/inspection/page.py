"""The inspection of a run: its parts one after the other, one page, and the files behind it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bara_pyro.diagnostics.inference_data import to_inference_data
from bara_pyro.diagnostics.netcdf import write_netcdf
from bara_pyro.inspection.certificate import certificate
from bara_pyro.inspection.context import Context, Options, Part, look
from bara_pyro.inspection.posterior import posterior
from bara_pyro.inspection.rank import where_the_rank_goes
from bara_pyro.inspection.tokens import tokens
from bara_pyro.inspection.trained import trained
from bara_pyro.inspection.uncertainty import uncertainty
from bara_pyro.report import save, write_index
from bara_pyro.store import SCHEMA, write_json
from bara_pyro.system import System

PARTS: dict[str, Callable[[Context], Part | None]] = {
    "trained": trained,
    "rank": where_the_rank_goes,
    "tokens": tokens,
    "uncertainty": uncertainty,
    "posterior": posterior,
    "certificate": certificate,
}
FOLDER, NUMBERS, DRAWS = "report", "inspection.json", "posterior.nc"
EXPORTED_ROWS = 64


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
        on_part: called with 1 after each of the parts and after the export.

    Returns:
        The page, and the findings.

    Raises:
        DataError: the split has no rows.
    """
    out = folder / FOLDER
    context = look(folder, system, options or Options())
    parts: dict[str, Part] = {}
    seconds: dict[str, float] = {}
    for name, make in PARTS.items():
        started = time.perf_counter()
        part = make(context)
        seconds[name] = round(time.perf_counter() - started, 2)
        if part is not None:
            parts[name] = part
            for title, figure in part.pictures.items():
                save(figure, out / f"{title}.png")
        if on_part is not None:
            on_part(1)
    _export(context, out)
    if on_part is not None:
        on_part(1)
    findings = [sentence for part in parts.values() for sentence in part.findings]
    write_json(out / NUMBERS, _numbers(context, parts, findings, seconds))
    return _page(context, parts, findings, out), findings


def _export(c: Context, out: Path) -> None:
    name = c.system.config.task.evaluate_on
    samples = c.options.samples
    data = to_inference_data(c.system, split=name, rows=min(EXPORTED_ROWS, len(c.rows)), samples=samples)
    write_netcdf(data, out / DRAWS)


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


def _page(c: Context, parts: dict[str, Part], findings: list[str], out: Path) -> Path:
    config = c.system.config
    text = [
        f"{config.method.name}, trained on {c.system.task.name} ({c.system.backbone.name}), looked at on "
        f"{len(c.rows)} rows. Every number is in {NUMBERS}, the draws are in {DRAWS} (ArviZ), the figures "
        "beside this page.",
        "What was found:",
        *(f"• {sentence}" for sentence in findings),
    ]
    title = f"Inside {config.method.name} on {c.system.task.name}"
    return write_index(out, title, text=text, sections=[part.section for part in parts.values()])

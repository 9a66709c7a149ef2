"""`bara inspect`: look inside a run."""

import math
from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import DataDir, Moved, Overwrite, Run, RunDevice, path
from bara_pyro.runs.sections import MOST_DRAWS, MOST_ROWS


def inspect(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", parser=path, help="Folder of the report. (default: RUN/report)"),
    ] = None,
    overwrite: Overwrite = False,
    rows: Annotated[int, typer.Option(min=8, max=MOST_ROWS, help="Test rows to look at.")] = 256,
    samples: Annotated[
        int,
        typer.Option(
            min=2, max=MOST_DRAWS, help="Posterior draws S; the draws of all parts, and the time, go with it."
        ),
    ] = 50,
    tau: Annotated[float, typer.Option(min=0, help="Threshold below which a gate counts as off.")] = 0.1,
    text: Annotated[
        list[str] | None,
        typer.Option(help="A text for the token maps, in place of nine short ones; can be repeated."),
    ] = None,
    data_dir: DataDir = None,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Look inside a run: where its rank goes, which tokens use it, how sure to be of its posterior.

    Writes a folder: a page (index.html), its figures, token maps, every number as JSON, and the draws as
    netCDF for ArviZ.
    """
    from bara_pyro.cli.outputs import check_folder
    from bara_pyro.errors import ConfigError
    from bara_pyro.runs.manifest import check_not_uploaded, check_run, is_run
    from bara_pyro.runs.ownership import adding

    if not all(one.strip() for one in text or []):
        raise ConfigError("A --text is empty: give it words or leave it out.")
    if not math.isfinite(tau):
        raise ConfigError(f"--tau is {tau}: give a threshold such as 0.1.")
    check_run(run)
    if out is not None and is_run(out):
        raise ConfigError(f"{out} is a run: give --out another folder.")
    out = out or run / "report"
    check_not_uploaded(run, out)
    check_folder(out, overwrite=overwrite, inputs=[run])

    from bara_pyro.cli.terminal import progress, result, say
    from bara_pyro.diagnostics.context import options
    from bara_pyro.diagnostics.page.page import PARTS, inspect_run
    from bara_pyro.runs.folder import load_system

    system = load_system(run, backbone=model, device=device, data_dir=data_dir)
    with adding(out) as place, progress(f"inspect {run.name}", len(PARTS) + 1) as advance:
        looked = options(rows, samples, tau, text or [])
        page, findings = inspect_run(run, system, looked, out=place, on_part=advance)
    page = out / page.name
    for sentence in findings:
        say(f"- {sentence}")
    say(f"Open {page}")
    result({"page": page, "findings": findings})

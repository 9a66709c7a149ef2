"""`bara inspect`: look inside a run."""

from typing import Annotated

import typer

from bara_pyro.cli.options import DataDir, Moved, Run, RunDevice


def inspect(
    run: Run,
    rows: Annotated[int, typer.Option(min=8, help="Test rows to look at.")] = 256,
    samples: Annotated[
        int, typer.Option(min=2, help="Posterior draws S; the draws of all parts, and the time, go with it.")
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

    Writes RUN/report: a page (index.html), its figures, token maps, every number as JSON, and the draws as
    netCDF for ArviZ.
    """
    from bara_pyro.cli.terminal import progress, say
    from bara_pyro.diagnostics.page.context import options
    from bara_pyro.diagnostics.page.page import PARTS, inspect_run
    from bara_pyro.errors import ConfigError
    from bara_pyro.runs.folder import load_system

    if not all(one.strip() for one in text or []):
        raise ConfigError("A --text is empty: give it words or leave it out.")
    system = load_system(run, backbone=model, device=device, data_dir=data_dir)
    with progress(f"inspect {run.name}", len(PARTS) + 1) as advance:
        page, findings = inspect_run(run, system, options(rows, samples, tau, text or []), on_part=advance)
    for sentence in findings:
        say(f"- {sentence}")
    say(f"Open {page}")

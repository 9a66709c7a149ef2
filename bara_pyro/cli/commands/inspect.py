"""`bara inspect`: write a report on a run."""

import math
from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import DataDir, Moved, Overwrite, Run, RunDevice, path
from bara_pyro.cli.wrap import INSIDE, listed
from bara_pyro.runs.sections import MOST_DRAWS, MOST_ROWS

TAU = 0.1
LONG = 10.0  # seconds; a longer inspection says so before it starts


@listed(INSIDE)
def inspect(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", parser=path, help="Folder of the report. (default: RUN/report)"),
    ] = None,
    overwrite: Overwrite = False,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also report on gates, tokens, uncertainty, posterior and bounds."),
    ] = False,
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough",
            help="As --deep, with the sources of uncertainty, leave-one-out on training rows and draws from "
            "priors; takes minutes.",
        ),
    ] = False,
    rows: Annotated[int, typer.Option(min=8, max=MOST_ROWS, help="Number of test rows to look at.")] = 256,
    samples: Annotated[
        int,
        typer.Option(
            min=2,
            max=MOST_DRAWS,
            help="Posterior draws S; the time grows with them. Without --deep the scores of the run's "
            "evaluation are enough, unless you give --rows or --samples.",
        ),
    ] = 50,
    tau: Annotated[
        float | None,
        typer.Option(min=0, help="With --deep: a gate below this is off. (default: 0.1)"),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="With --deep: a text for the token maps, instead of nine short ones; can be repeated."
        ),
    ] = None,
    data_dir: DataDir = None,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Report how well a run's probabilities are calibrated, and with --deep on its gates and posterior.

    The report is a folder: a page (index.html), its figures, and every number as JSON. With --deep it also
    has token maps, and the posterior draws as netCDF for ArviZ.
    """
    from bara_pyro.cli.checks import check_folder, note_of_draws, refuse
    from bara_pyro.errors import ConfigError
    from bara_pyro.runs.manifest import check_not_uploaded, check_run, is_run
    from bara_pyro.runs.ownership import adding

    if not all(one.strip() for one in text or []):
        raise ConfigError("--text is empty: give a text, or leave it out.")
    if tau is not None and not math.isfinite(tau):
        raise ConfigError(f"--tau {tau} is not a threshold: give a number such as 0.1.")
    deep = deep or thorough
    if not deep:
        refuse(["tau", "text"], "belongs to --deep: give --deep as well")
    check_run(run)
    if out is not None and is_run(out):
        raise ConfigError(f"{out} is a run: choose another folder for --out.")
    out = out or run / "report"
    check_not_uploaded(run, out)
    check_folder(out, overwrite=overwrite, inputs=[run])

    from bara_pyro.cli.terminal import mode, progress, remark, result, say, shell_word
    from bara_pyro.diagnostics.context import Options
    from bara_pyro.diagnostics.inspection import estimated_seconds, inspect_run, part_names
    from bara_pyro.durations import spoken
    from bara_pyro.runs.evaluation_files import is_evaluated
    from bara_pyro.runs.folder import load_system

    system = load_system(run, backbone=model, device=device, data_dir=data_dir)
    note_of_draws(system, samples=samples)
    if not (deep or mode.typed & {"rows", "samples"}) and is_evaluated(run, system.config.hash):
        samples = 0
    texts = tuple(text or ())
    looked = Options(rows, samples, TAU if tau is None else tau, texts, deep, thorough)
    about = estimated_seconds(run, system, looked) if samples else None
    if about is not None and about > LONG:
        remark(f"Note: this takes about {spoken(about)}, judged by the run's evaluation.")
    parts = len(part_names(looked)) + 1
    bar = progress(f"inspect {run.name}", parts, even=False, seconds=about)
    with adding(out, replacing=True) as place, bar as advance:
        page, findings = inspect_run(run, system, looked, out=place, on_part=advance)
    page = out / page.name
    for sentence in findings:
        say(f"- {sentence}")
    say(f"Written to {out}")
    deeper = "" if deep else f", or look deeper with bara inspect {shell_word(run)} --deep --overwrite"
    say(f"Next: open {shell_word(page)} in a browser{deeper}")
    result({"page": page, "findings": findings})

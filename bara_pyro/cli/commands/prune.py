"""`bara prune`: make a run smaller, with the same predictions."""

from typing import Annotated

import typer

from bara_pyro.cli.options import Moved, OutFolder, Overwrite, Run, RunDevice, Verbose
from bara_pyro.cli.wrap import SHARE, listed
from bara_pyro.runs.sections import MOST_ROWS


@listed(SHARE)
def prune(
    run: Run,
    out: OutFolder,
    overwrite: Overwrite = False,
    verbose: Verbose = False,
    tolerance: Annotated[
        float, typer.Option(help="Largest change of a class probability on the calibration rows, 0 to 1.")
    ] = 0.01,
    rows: Annotated[int, typer.Option(min=1, max=MOST_ROWS, help="Training rows for calibration.")] = 256,
    curve: Annotated[
        bool,
        typer.Option(
            help="Also measure scores, size and time as the kept rank grows; takes as long as several "
            "evaluations."
        ),
    ] = False,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Remove adapter units that contribute nothing: a smaller run with the same predictions.

    Works for BaRA and LoRA. A unit's importance is the size of what it adds to its layer's output. Every
    other command reads the smaller run, and PEFT reads it if it is a LoRA.
    """
    from bara_pyro.cli.outputs import check_folder
    from bara_pyro.cli.typed import show_every_column
    from bara_pyro.errors import ConfigError
    from bara_pyro.runs.manifest import check_run

    show_every_column(verbose)
    if not 0 <= tolerance <= 1:
        raise ConfigError(f"--tolerance {tolerance} is not a probability: give a number from 0 to 1.")
    check_folder(out, overwrite=overwrite, inputs=[run])
    check_run(run)

    from bara_pyro.atomic import write_json
    from bara_pyro.cli.running import evaluate_with_progress
    from bara_pyro.cli.scores import show_scores
    from bara_pyro.cli.terminal import progress, result, say, say_next, show
    from bara_pyro.data import first_rows
    from bara_pyro.diagnostics.gates.prune import prune as smaller_of
    from bara_pyro.diagnostics.gates.prune_curve import SHARES, curve_figure, curve_table, prune_curve
    from bara_pyro.report import save
    from bara_pyro.runs.evaluate import parameter_counts
    from bara_pyro.runs.folder import load_system, save_system, saved_step, write_config
    from bara_pyro.runs.ownership import adding, clear
    from bara_pyro.runs.steps import train_seconds
    from bara_pyro.untrusted.schemas import SCHEMA

    system = load_system(run, backbone=model, device=device)
    calibration = first_rows(system.split("train"), rows)
    pruned = smaller_of(system, calibration, tolerance)
    clear(out)
    write_config(pruned.system, out)
    save_system(pruned.system, out, saved_step(system, run))
    label = f"{system.config.method.name} with {pruned.kept} of {pruned.units} units"
    report = evaluate_with_progress(pruned.system, out, label, wall_clock_train_s=train_seconds(run))
    show_scores(report)
    before, after = (sum(parameter_counts(s)[k] for k in ("model", "guide")) for s in (system, pruned.system))
    say(
        f"{pruned.kept} of {pruned.units} units are left, with {after:,} of {before:,} parameters. On the "
        f"calibration rows no probability under the posterior mean changed by more than "
        f"{pruned.difference:.4f}."
    )
    points = []
    if curve:
        samples = max(system.config.predict.samples)
        with progress("curve of kept rank", len(SHARES)) as advance:
            points = prune_curve(system, calibration, system.split("test"), samples=samples, on_point=advance)
        with adding(out) as place:
            write_json(place / "prune.json", {"schema": SCHEMA, "tolerance": tolerance, "curve": points})
            save(curve_figure(points), place / "prune.png")
        show(curve_table(points, samples))
    say(f"Written to {out}")
    say_next("bara", "compare", run, out)
    units = {
        "rows": len(calibration),
        "kept": pruned.kept,
        "units": pruned.units,
        "difference": pruned.difference,
    }
    result({**report, "prune": {"tolerance": tolerance, **units, "curve": points}})

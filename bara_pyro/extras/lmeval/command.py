"""`bara lm-eval`: score a run, or a language model, on tasks of lm-evaluation-harness."""

import sys
from contextlib import nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import MODEL, DataDir, Limit, Moved, Overwrite, RunDevice, Seed, of_data, path
from bara_pyro.cli.wrap import STUDY, listed
from bara_pyro.runs.sections import MOST_DRAWS
from bara_pyro.types import Json, PredictiveName, WeightType
from bara_pyro.untrusted.files import bounded_json, read_text


@listed(
    STUDY,
    *(
        "tasks",
        "predictive",
        "samples",
        "batch_size",
        "num_fewshot",
        "limit",
        "out",
        "overwrite",
        "model",
        "device",
    ),
)
def lm_eval(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            parser=path,
            help="Folder of a finished run; with --predictive base also a language model (folder or hub "
            "name).",
        ),
    ],
    tasks: Annotated[
        str, of_data(metavar="NAME,NAME", help="Tasks of lm-eval, or your own, separated by commas.")
    ],
    predictive: Annotated[
        PredictiveName,
        typer.Option(
            help="Distribution of a continuation. joint: one posterior draw for the whole continuation; "
            "token: a new draw at each token; mean: every latent at its posterior mean; base: no adapters."
        ),
    ] = "joint",
    samples: Annotated[
        int, typer.Option(min=1, max=MOST_DRAWS, help="Posterior draws S, for --predictive joint and token.")
    ] = 10,
    law: Annotated[PredictiveName | None, typer.Option(hidden=True, help="Old name of --predictive.")] = None,
    seed: Seed = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests per forward pass, each of S rows.")] = 8,
    num_fewshot: Annotated[
        int | None, of_data(min=0, help="Examples before each question. (default: the task's)")
    ] = None,
    data_dir: DataDir = None,
    include_path: Annotated[
        Path | None, of_data(parser=path, metavar="FOLDER", help="Folder of your own task files.")
    ] = None,
    limit: Limit = None,
    out: Annotated[
        Path | None, typer.Option(parser=path, metavar="FILE", help="File to write the results to, JSON.")
    ] = None,
    overwrite: Overwrite = False,
    model: Moved = None,
    device: RunDevice = None,
    dtype: Annotated[
        WeightType | None,
        typer.Option(
            rich_help_panel=MODEL, help="Type of the weights, if RUN is a language model. (default: float32)"
        ),
    ] = None,
) -> None:
    """Score a run on tasks of lm-evaluation-harness, before (--predictive base) and after training."""
    from bara_pyro.cli.checks import check_file, check_overwrite, note_of_draws, refuse
    from bara_pyro.cli.terminal import mode, result, say, say_next, say_notes
    from bara_pyro.errors import ConfigError, DataError
    from bara_pyro.runs.manifest import check_run, is_language_model, is_run

    check_overwrite(out)
    if law is not None:
        refuse(["predictive"], "is the new name of --law: give one of them")
        say_notes(["--law is now --predictive: the old name goes with the next version"])
        predictive = law
    if predictive in ("mean", "base"):
        reason = (
            f"needs draws, which --predictive {predictive} does not use: give --predictive joint or token"
        )
        refuse(["samples", "seed"], reason)
    if predictive != "base" or is_run(run):
        if is_language_model(run):
            raise ConfigError(
                f"{run} is a language model, but --predictive {predictive} needs a run: give --predictive "
                f"base, or a run's folder with --model {run}."
            )
        check_run(run)
    for folder in (data_dir, include_path):
        if folder is not None and not folder.is_dir():
            raise DataError(f"There is no folder {folder}: check the path.")
    if out is not None:
        read = [folder for folder in (run, data_dir, include_path) if folder is not None]
        check_file(out, overwrite=overwrite, inputs=read, ours=_results_in)

    from bara_pyro.atomic import write_json
    from bara_pyro.extras.lmeval.harness import BaraLM, evaluate_tasks

    names = [name.strip() for name in tasks.split(",") if name.strip()]
    lm = BaraLM(
        run, predictive, samples, seed, batch_size=batch_size, backbone=model, device=device, dtype=dtype
    )
    if lm.system is not None:
        note_of_draws(lm.system, samples=samples, seed=seed)
    # lm-eval always writes its progress bars to stderr.
    with redirect_stderr(StringIO()) if mode.quiet else nullcontext(sys.stderr):
        report = evaluate_tasks(
            lm, names, data_dir=data_dir, include_path=include_path, limit=limit, num_fewshot=num_fewshot
        )
    _show(report)
    if lm.truncated:
        say_notes([f"{lm.truncated} contexts were cut to their last {lm.max_length} tokens"])
    if out is not None:
        write_json(out, report)
        say(f"Written to {out}")
    result(report)
    if not is_run(run):
        say_next("bara", "train", "FILE", "--model", run)
    elif predictive == "base":
        say_next("bara", "lm-eval", run, "--tasks", tasks, remark="the run after training")
    else:
        say_next("bara", "lm-eval", run, "--tasks", tasks, "--predictive", "base", remark="before training")


def _show(report: Json) -> None:
    """Print a table with one row per task and metric."""
    from bara_pyro.cli.terminal import show
    from bara_pyro.report.table import Column, Table

    columns = (
        Column("task", "task"),
        Column("metric", "metric"),
        Column("value", "value", format=".4f"),
        Column("stderr", "SE", format=".4f"),
        Column("shots", "shots", format="d"),
        Column("rows", "rows", format="d"),
        Column("version", "version"),
    )
    about = report["model"]
    drawn = f" of {about['samples']} draws" if about["samples"] else ""
    who = f"{about['method'] or 'language model'}, {about['predictive']}{drawn}"
    caption = f"{who}; lm-eval {report['lm_eval']}"
    show(Table(columns, _rows(report), caption))


def _rows(report: Json) -> list[Json]:
    rows = []
    for task, scores in report["results"].items():
        for key, value in scores.items():
            metric, _, variant = key.partition(",")
            if not variant or metric.endswith("_stderr"):
                continue
            spread = scores.get(f"{metric}_stderr,{variant}")
            rows.append(
                {
                    "task": task,
                    "metric": metric if variant == "none" else f"{metric}, {variant}",
                    "value": value,
                    "stderr": spread if isinstance(spread, float) else None,
                    "shots": report["n-shot"].get(task),
                    "rows": report["n-samples"].get(task, {}).get("effective"),
                    "version": str(report["versions"].get(task, "")),
                }
            )
    return rows


def _results_in(file: Path) -> bool:
    """Return whether this command wrote a file."""
    try:
        stored = bounded_json(read_text(file), finite=False)
    except (OSError, ValueError):
        return False
    return isinstance(stored, dict) and {"lm_eval", "model", "results"} <= stored.keys()

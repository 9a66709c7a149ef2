"""`bara humaneval`: write programs with a run and test them in a sandbox."""

from pathlib import Path
from typing import Annotated

import typer

from bara_pyro.cli.options import (
    Draws,
    MaxNewTokens,
    Moved,
    OutFolder,
    Overwrite,
    Run,
    RunDevice,
    Seed,
    Temperature,
    TopK,
    of_sampling,
    path,
)
from bara_pyro.cli.wrap import STUDY, listed
from bara_pyro.runs.sections import MOST_DRAWS


@listed(
    STUDY,
    *("problems", "out", "overwrite", "resume", "replies", "limit", "draws", "temperature"),
    *("max_new_tokens", "seed", "model", "device"),
)
def humaneval(
    run: Run,
    problems: Annotated[
        Path, typer.Option(parser=path, help="HumanEval.jsonl or HumanEval.jsonl.gz, as published.")
    ],
    out: OutFolder,
    overwrite: Overwrite = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    replies: Annotated[int, typer.Option(min=1, max=MOST_DRAWS, help="Programs per problem.")] = 8,
    limit: Annotated[int | None, typer.Option(min=2, help="Use only the first N problems.")] = None,
    draws: Draws = "each",
    temperature: Temperature = 0.8,
    top_p: Annotated[
        float | None,
        of_sampling(
            help="Sample from the likeliest tokens with this total probability. (default: 0.95; 1 at "
            "temperature 0)"
        ),
    ] = None,
    top_k: TopK = 0,
    max_new_tokens: MaxNewTokens = None,
    seed: Seed = 0,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Time limit of a program and its test, in seconds.")
    ] = 10.0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Programs run in parallel. (default: one per core)")
    ] = None,
    allow_unsandboxed: Annotated[
        bool,
        typer.Option(
            "--allow-unsandboxed",
            help="DANGEROUS: run unreviewed programs with your own permissions, without bubblewrap.",
        ),
    ] = False,
    model: Moved = None,
    device: RunDevice = None,
) -> None:
    """Write programs for HumanEval's problems and test them: pass@k, with intervals over problems.

    Also reports the mean entropy per token and how different the programs of a problem are. Programs run in a
    bubblewrap sandbox (Linux), without network and with limits. The output folder holds the programs, their
    test results and the scores.
    """
    from bara_pyro.cli.checks import check_folder, note_of_draws
    from bara_pyro.errors import ConfigError
    from bara_pyro.extras.replies.sandbox import Limits, check_isolation, load_humaneval
    from bara_pyro.runs.manifest import check_run
    from bara_pyro.runs.ownership import adding, clear

    if resume and overwrite:
        raise ConfigError(
            "--resume continues the results in --out, but --overwrite replaces them: leave one of them out."
        )
    check_run(run)
    check_folder(out, overwrite=overwrite or resume, inputs=[run])
    tasks = load_humaneval(problems)[:limit]

    from bara_pyro.extras.replies.generation.humaneval import check_problems

    check_problems(tasks)
    if not allow_unsandboxed:
        check_isolation()

    from bara_pyro.cli.options import draws_of
    from bara_pyro.cli.terminal import progress, result, say, say_next, show
    from bara_pyro.extras.replies.generation.decoding import Decoding
    from bara_pyro.extras.replies.generation.humaneval import judge_programs, score_programs, write_programs
    from bara_pyro.extras.replies.generation.spread import FEW, sentences
    from bara_pyro.report.table import Column, Table
    from bara_pyro.runs.folder import load_system

    how = Decoding(
        draws_of(draws),
        temperature=temperature,
        top_p=top_p if top_p is not None else 0.95 if temperature else 1.0,
        top_k=top_k,
        max_new_tokens=max_new_tokens,
        seed=seed,
    )
    system = load_system(run, backbone=model, device=device, with_rows=False)
    note_of_draws(system, draws=draws != "mean")
    if not resume:
        clear(out)
    out.mkdir(parents=True, exist_ok=True)
    with progress("write programs", len(tasks) * replies) as advance:
        programs = write_programs(system, tasks, out, how, replies=replies, on_program=advance)
    with progress("run programs", len(programs)) as advance:
        judged = judge_programs(
            tasks,
            programs,
            out,
            limits=Limits(seconds=seconds),
            workers=workers,
            unsandboxed=allow_unsandboxed,
            on_program=advance,
        )
    with adding(out) as place:
        _, report = score_programs(programs, judged, place)
    rows = [
        {"k": k, "pass": part["value"], "interval": f"{part['low']:.1f} to {part['high']:.1f}"}
        for k, part in enumerate(report["pass_at_k"].values(), 1)
        if k & (k - 1) == 0 or k == replies  # powers of two, and all
    ]
    columns = (Column("k", "k", format="d"), Column("pass", "pass@k", "%", ".1f"), Column("interval", "95 %"))
    show(Table(columns, rows, f"{len(tasks)} problems, {replies} programs each; intervals over problems"))
    for sentence in sentences(report, min(FEW, replies)):
        say(sentence)
    say(f"Written to {out}")
    result({"out": out, **report})
    other, means = ("mean", "without draws") if draws != "mean" else ("each", "with draws")
    say_next(
        *("bara", "humaneval", run, "--problems", problems, "--out", "FOLDER", "--draws", other), remark=means
    )

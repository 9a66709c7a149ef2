"""What the commands of the command line do."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bara_pyro.config import RunConfig, load_config
from bara_pyro.data import SOURCES, encode, load_questions, load_task
from bara_pyro.errors import BaraError, ConfigError
from bara_pyro.evaluate import draw, evaluate_system, uncertainty_rows
from bara_pyro.methods import METHODS, build
from bara_pyro.report import Column, Table, rich_table
from bara_pyro.store import write_jsonl
from bara_pyro.system import System, build_system, count_parameters, load_system
from bara_pyro.train import train as fit

console = Console()

SCORES = (
    Column("method", "method"),
    Column("S", "S", format="d"),
    Column("acc", "accuracy", "%", ".1f", "max"),
    Column("ece", "ECE", "%", ".1f", "min"),
    Column("nll", "NLL", "nats", ".3f", "min"),
    Column("brier", "Brier", "", ".3f", "min"),
    Column("kl_truth", "KL from truth", "nats", ".3f", "min"),
    Column("trainable", "trainable", "", ",d"),
    Column("phi", "Φ sparse", "%", ".1f"),
    Column("theta", "θ sparse", "%", ".1f"),
    Column("psi", "Φθ sparse", "%", ".1f"),
)


@contextmanager
def progress(description: str, total: int) -> Iterator[Any]:
    """Show a progress bar; yields a function to advance it, with text to show beside it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(count: int = 1, note: str = "", completed: int | None = None) -> None:
            bar.update(task, advance=None if completed is not None else count, completed=completed, note=note)

        yield advance


def train(
    out: Path,
    overrides: dict[str, Any],
    config_file: Path | None,
    assignments: list[str],
    *,
    resume: bool = False,
) -> None:
    """Train, evaluate, print the scores."""
    config = load_config(config_file, overrides, assignments)
    report = run(config, out, resume=resume)
    console.print(rich_table(Table(SCORES, score_rows(report))))
    console.print(f"Written to {out}", soft_wrap=True)


def run(
    config: RunConfig, out: Path, *, resume: bool = False, system: System | None = None, name: str = ""
) -> dict[str, Any]:
    """Train and evaluate one configuration with a progress bar; return what metrics.json holds."""
    system = system or build_system(config)
    label = name or f"{config.method.name} on {system.task.name}"
    start = time.perf_counter()
    with progress(f"train {label}", config.train.steps) as advance:
        fit(
            system,
            out,
            resume=resume,
            on_step=lambda step, parts: advance(completed=step, note=f"nll {parts['nll']:.3f}"),
        )
    trained = time.perf_counter()
    return evaluate_with_progress(system, out, label, wall_clock_train_s=trained - start)


def evaluate_with_progress(system: System, out: Path, label: str, **extra: Any) -> dict[str, Any]:
    """Evaluate a fitted system with a progress bar."""
    rows = len(getattr(system.task, system.config.task.evaluate_on))
    with progress(f"evaluate {label}", rows * len(system.config.predict.samples)) as advance:
        return evaluate_system(system, out, on_rows=advance, **extra)


def score_rows(report: dict[str, Any], name: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of the score table for one run: one a number of draws."""
    common = {
        "method": name or report["method"],
        "trainable": report["parameters"]["trainable"],
        **report["sparsity"],
    }
    return [{**common, "S": int(s), **scores} for s, scores in report["metrics"].items()]


def evaluate(
    folder: Path,
    *,
    samples: list[int] | None,
    task: str | None,
    split: str | None,
    model: str | None,
    data_dir: Path | None,
    device: str | None,
    out: Path | None,
) -> None:
    """Evaluate a finished run, on its own task or another with the same kind of answers."""
    system = load_system(folder, backbone=model, device=device, data_dir=data_dir)
    changes: dict[str, Any] = {}
    if samples:
        changes["predict.samples"] = samples
    if split:
        changes["task.evaluate_on"] = split
    if task and out is None:
        raise ConfigError("evaluate --task needs --out: the run's own results would be overwritten.")
    system = _changed(system, changes, task)
    report = evaluate_with_progress(system, out or folder, f"{folder}")
    console.print(rich_table(Table(SCORES, score_rows(report))))


def _changed(system: System, changes: dict[str, Any], task: str | None) -> System:
    """Return the system with other prediction settings, or another task to evaluate on."""
    from dataclasses import replace

    from bara_pyro.config import parse_config, set_key
    from bara_pyro.data import answer_token_ids
    from bara_pyro.system import load_data

    data = system.config.dump()
    for key, value in changes.items():
        set_key(data, key, value)
    if task is not None:
        set_key(data, "task.name", task)
    config = parse_config(data)
    if task is None:
        return replace(system, config=config)
    loaded = load_data(config)
    ids = answer_token_ids(system.backbone.tokenizer, loaded.labels)
    return replace(system, config=config, task=loaded, answer_ids=ids)


def predict(
    folder: Path,
    input_file: Path,
    output: Path,
    *,
    samples: int,
    seed: int,
    model: str | None,
    data_dir: Path | None,
    device: str | None,
) -> None:
    """Answer the rows of a file."""
    system = load_system(folder, backbone=model, device=device, data_dir=data_dir)
    rows = load_questions(input_file, system.task)
    split = encode(rows, system.backbone.tokenizer, system.config.task.max_length)
    with progress(f"predict {input_file.name}", len(split)) as advance:
        draws = draw(system, split, samples, seed=seed, on_rows=advance)
    write_jsonl(output, uncertainty_rows(draws, split.ids, system.task.labels))
    console.print(f"{len(split)} rows written to {output}", soft_wrap=True)


def methods() -> None:
    """Print the methods."""
    columns = (Column("name", "method"), Column("summary", "what it is"))
    rows = [{"name": m.name, "summary": m.summary} for m in METHODS.values()]
    console.print(rich_table(Table(columns, rows)))


def tasks(name: str | None, *, data_dir: Path | None, rows: int) -> None:
    """Print the tasks, or a few rows of one."""
    from bara_pyro.microworld import TASKS

    if name is None:
        columns = (Column("name", "task"), Column("paper", "in the paper"), Column("where", "where from"))
        listed = [{"name": spec, "paper": TASKS[spec].mimics, "where": "microworld"} for spec in TASKS]
        listed += [{"name": key, "paper": s.paper, "where": s.hub} for key, s in SOURCES.items()]
        console.print(rich_table(Table(columns, listed)))
        return
    task = load_task(name, data_dir)
    counts = f"{len(task.train)} train, {len(task.validation)} validation, {len(task.test)} test rows"
    console.print(f"{task.name}: {counts}; answers {', '.join(task.labels)}", markup=False)
    for note in task.notes:
        console.print(f"- {note}", markup=False)
    for row in (task.train or task.test)[:rows]:
        console.rule(row.id)
        if row.context:
            console.print(row.context, markup=False, style="dim")
        console.print(row.question, task.labels[row.label], markup=False)


def params(method: str, *, arch: str | None, model: str | None, assignments: list[str]) -> None:
    """Print parameter counts."""
    from bara_pyro.architectures import empty_backbone
    from bara_pyro.backbone import load_backbone

    if (arch is None) == (model is None):
        raise ConfigError("params needs exactly one of --arch and --model.")
    backbone = empty_backbone(arch) if arch is not None else load_backbone(model or "")
    config = load_config(None, {"method": method}, assignments)
    program, guide = build(config.method, backbone, 1, config.adapter.model_dump())
    frozen = sum(p.numel() for p in backbone.lm.parameters())
    own, posterior = count_parameters(program), count_parameters(guide)
    columns = (Column("part", "part"), Column("count", "parameters", format=",d"))
    parts = (
        ("adapters (model)", own),
        ("posteriors (guide)", posterior),
        ("trainable", own + posterior),
        ("frozen", frozen),
    )
    caption = f"{method} on {arch or model}, r = {config.adapter.r}, {len(program.targets)} modules"
    console.print(rich_table(Table(columns, [{"part": p, "count": c} for p, c in parts], caption)))


def microworld_build(out: Path, *, seed: int, steps: int | None, card: Path | None) -> None:
    """Rebuild the microworld's backbone, and its card if asked."""
    raise BaraError("not yet")

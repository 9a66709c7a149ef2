"""What the commands of the command line do."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bara_pyro.cli.terminal import console, progress, say, score_rows, score_table, show
from bara_pyro.data import encode, first_rows, load_questions, load_task
from bara_pyro.data.registry import SOURCES
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.methods import METHODS, build
from bara_pyro.report.table import Column, Table
from bara_pyro.runs.config import RunConfig, differences, load_config, parse_config, set_key
from bara_pyro.runs.evaluate import draw, evaluate_system, parameter_counts, uncertainty_rows
from bara_pyro.runs.folder import CONFIG, load_system, save_system, saved_step, stored_config, write_config
from bara_pyro.runs.store import SCHEMA, write_json, write_jsonl
from bara_pyro.runs.system import System, build_system, count_parameters, load_data
from bara_pyro.runs.train import check_free, train_seconds
from bara_pyro.runs.train import train as fit


def train(
    out: Path,
    overrides: dict[str, Any],
    config_file: Path | None,
    assignments: list[str],
    *,
    resume: bool = False,
) -> None:
    """Train, evaluate, print the scores."""
    check_free(out, resume)  # before anything slow
    started = stored_config(out)[0] if resume and (out / CONFIG).exists() else None
    config = load_config(config_file, overrides, assignments, base=started)
    if started is not None and (changed := differences(started, config)):
        raise ConfigError(
            f"{out} was started with another {', '.join(changed)}: leave the settings out to resume it as it "
            "was, or choose another --out."
        )
    report = run(config, out, resume=resume)
    show(score_table(score_rows(report)))
    say(f"Written to {out}")


def run(
    config: RunConfig, out: Path, *, resume: bool = False, system: System | None = None, name: str = ""
) -> dict[str, Any]:
    """Train and evaluate one configuration with a progress bar; return what metrics.json holds."""
    system = system or build_system(config)
    label = name or f"{config.method.name} on {system.task.name}"
    with progress(f"train {label}", config.train.steps) as advance:
        fit(
            system,
            out,
            resume=resume,
            on_step=lambda step, parts: advance(completed=step, note=f"nll {parts['nll']:.3f}"),
        )
    return evaluate_with_progress(system, out, label, wall_clock_train_s=train_seconds(out))


def evaluate_with_progress(system: System, out: Path, label: str, **extra: Any) -> dict[str, Any]:
    """Evaluate a fitted system with a progress bar."""
    rows = len(system.split(system.config.task.evaluate_on))
    with progress(f"evaluate {label}", rows * len(system.config.predict.samples)) as advance:
        return evaluate_system(system, out, on_rows=advance, **extra)


def evaluate(
    folder: Path,
    *,
    samples: list[int] | None,
    task: dict[str, Any],
    split: str | None,
    model: str | None,
    device: str | None,
    out: Path | None,
) -> None:
    """Evaluate a finished run, on its own task or another with the same kind of answers.

    Args:
        folder: of the run.
        samples: numbers of draws; the run's own if None.
        task: settings of the task that differ from the run's own; with a `name`, of another task.
        split: "test" or "validation"; the run's own if None.
        model: where the backbone is now, if it has moved.
        device: to run on; the run's own if None.
        out: folder of the results; `<folder>/evaluation/<task>-<split>` if None.
    """
    config = _evaluation_config(stored_config(folder)[0], samples, task, split)
    data = load_data(config)
    system = replace(load_system(folder, backbone=model, device=device, task=data), config=config)
    out = out or folder / "evaluation" / f"{data.name}-{config.task.evaluate_on}"
    report = evaluate_with_progress(
        system, out, f"{config.method.name} on {data.name}", wall_clock_train_s=train_seconds(folder)
    )
    show(score_table(score_rows(report)))
    say(f"Written to {out}")


def _evaluation_config(
    config: RunConfig, samples: list[int] | None, task: dict[str, Any], split: str | None
) -> RunConfig:
    """Return the configuration of a run with other settings of prediction or another task."""
    data = config.dump()
    if "name" in task:
        # Only what belongs to the model, and not to the rows it was trained on, carries over.
        data["task"] = {key: data["task"][key] for key in ("max_length", "too_long", "labels", "evaluate_on")}
    for key, value in task.items():
        set_key(data, f"task.{key}", value)
    if samples:
        set_key(data, "predict.samples", samples)
    if split:
        set_key(data, "task.evaluate_on", split)
    return parse_config(data)


def predict(
    folder: Path,
    input_file: Path,
    output: Path,
    *,
    samples: int,
    seed: int,
    model: str | None,
    device: str | None,
) -> None:
    """Answer the rows of a file."""
    if not input_file.is_file():
        raise DataError(f"There is no file {input_file}.")  # before anything slow
    system = load_system(folder, backbone=model, device=device, with_rows=False)
    rows = load_questions(input_file, system.task)
    c = system.config.task
    split = encode(rows, system.backbone.tokenizer, c.max_length, too_long=c.too_long)
    with progress(f"predict {input_file.name}", len(split)) as advance:
        draws = draw(system, split, samples, seed=seed, on_rows=advance)
    write_jsonl(output, uncertainty_rows(draws, split.ids, system.task.labels))
    dropped = f", {len(split.dropped)} left out: their question is too long" if split.dropped else ""
    say(f"{len(split)} rows written to {output}{dropped}")


def inspect(
    folder: Path,
    *,
    rows: int,
    samples: int,
    tau: float,
    texts: Sequence[str],
    data_dir: Path | None,
    model: str | None,
    device: str | None,
) -> None:
    """Look inside a run, write the report, print what was found.

    Args:
        folder: of a finished run; the report goes to its subfolder `report`.
        rows: test rows to look at.
        samples: posterior draws.
        tau: threshold below which a gate counts as off.
        texts: for the token maps; nine short ones if there are none.
        data_dir: where the data are now, if they have moved.
        model: where the backbone is now, if it has moved.
        device: to run on; the run's own if None.
    """
    from bara_pyro.diagnostics.context import options
    from bara_pyro.diagnostics.page.page import PARTS, inspect_run

    if not all(text.strip() for text in texts):
        raise ConfigError("A --text is empty: give it words or leave it out.")
    system = load_system(folder, backbone=model, device=device, data_dir=data_dir)
    with progress(f"inspect {folder.name}", len(PARTS) + 1) as advance:
        page, findings = inspect_run(folder, system, options(rows, samples, tau, texts), on_part=advance)
    for sentence in findings:
        say(f"- {sentence}")
    say(f"Open {page}")


def prune(
    folder: Path,
    out: Path,
    *,
    tolerance: float,
    rows: int,
    curve: bool,
    model: str | None,
    device: str | None,
) -> None:
    """Write a smaller run of the same predictions, and what more pruning would do.

    Args:
        folder: of a finished run.
        out: folder of the smaller one.
        tolerance: largest change of a class probability on the calibration rows.
        rows: how many training rows to calibrate on.
        curve: also measure scores along a curve of kept rank.
        model: where the backbone is now, if it has moved.
        device: to run on; the run's own if None.
    """
    from bara_pyro.diagnostics.gates.prune import prune as smaller_of
    from bara_pyro.diagnostics.gates.prune_curve import SHARES, curve_figure, curve_table, prune_curve
    from bara_pyro.report import save

    check_free(out, resume=False)  # before anything slow
    system = load_system(folder, backbone=model, device=device)
    calibration = first_rows(system.split("train"), rows)
    found = smaller_of(system, calibration, tolerance)
    write_config(found.system, out)
    save_system(found.system, out, saved_step(system, folder))
    label = f"{system.config.method.name} with {found.kept} of {found.units} units"
    report = evaluate_with_progress(found.system, out, label, wall_clock_train_s=train_seconds(folder))
    show(score_table(score_rows(report)))
    before, after = (sum(parameter_counts(s)[k] for k in ("model", "guide")) for s in (system, found.system))
    say(
        f"{found.kept} of {found.units} units are left, {after:,} of {before:,} parameters; on the "
        f"calibration rows no probability of the posterior mean changed by more than {found.difference:.4f}."
    )
    if curve:
        samples = max(system.config.predict.samples)
        with progress("curve of kept rank", len(SHARES)) as advance:
            points = prune_curve(system, calibration, system.split("test"), samples=samples, on_point=advance)
        write_json(out / "prune.json", {"schema": SCHEMA, "tolerance": tolerance, "curve": points})
        save(curve_figure(points), out / "prune.png")
        show(curve_table(points, samples))
    say(f"Written to {out}")


def methods() -> None:
    """Print the methods."""
    columns = (Column("name", "method"), Column("summary", "what it is"))
    show(Table(columns, [{"name": m.name, "summary": m.summary} for m in METHODS.values()]))


def tasks(name: str | None, *, data_dir: Path | None, rows: int) -> None:
    """Print the tasks, or a few rows of one."""
    from bara_pyro.microworld import TASKS

    if name is None:
        columns = (Column("name", "task"), Column("paper", "in papers"), Column("where", "where from"))
        listed = [{"name": key, "paper": spec.mimics, "where": "microworld"} for key, spec in TASKS.items()]
        listed += [{"name": key, "paper": s.paper, "where": s.hub} for key, s in SOURCES.items()]
        show(Table(columns, listed))
        say("Or a .jsonl, .json or .csv file of your own: rows with question, answer and maybe choices.")
        return
    task = load_task(name, data_dir)
    counts = f"{len(task.train)} train, {len(task.validation)} validation, {len(task.test)} test rows"
    say(f"{task.name}: {counts}; answers {', '.join(task.labels)}")
    for note in task.notes:
        say(f"- {note}")
    for row in (task.train or task.test)[:rows]:
        console.rule(row.id)
        if row.context:
            say(row.context)
        say(f"{row.question} {task.labels[row.label]}")


def params(method: str, *, arch: str | None, model: str | None, assignments: list[str]) -> None:
    """Print parameter counts."""
    from bara_pyro.cli.architectures import empty_backbone
    from bara_pyro.core.backbone import load_backbone

    if (arch is None) == (model is None):
        raise ConfigError("params needs one of --arch and --model, and not both.")
    config = load_config(None, {"method": method}, assignments)
    backbone = empty_backbone(arch) if arch is not None else load_backbone(model or "")
    program, guide = build(config.method, backbone, 1, config.adapter.model_dump())
    own, posterior = count_parameters(program), count_parameters(guide)
    columns = (Column("part", "part"), Column("count", "parameters", format=",d"))
    parts = {
        "adapters (model)": own,
        "posteriors (guide)": posterior,
        "trainable": own + posterior,
        "frozen": sum(p.numel() for p in backbone.lm.parameters()),
    }
    caption = f"{method} on {arch or model}, r = {config.adapter.r}, {len(program.targets)} modules"
    show(Table(columns, [{"part": part, "count": count} for part, count in parts.items()], caption))


def microworld_build(
    out: Path, *, seed: int, steps: int | None, hidden_size: int | None, layers: int | None
) -> None:
    """Rebuild the microworld's backbone and say what came of it."""
    from bara_pyro.microworld.build import STEPS, build

    with progress("pretrain the microworld's backbone", steps or STEPS) as advance:
        sizes = {"hidden_size": hidden_size, "layers": layers}
        report = build(
            out,
            seed,
            steps,
            lambda step, _, loss: advance(completed=step, note=f"loss {loss:.3f}"),
            **{name: size for name, size in sizes.items() if size is not None},
        )
    say(
        f"{report.parameters:,} parameters, loss {report.final_loss:.3f} nats a token over the last tenth of "
        f"{report.steps} steps, {report.megabytes:.1f} MB written to {out}"
    )


def microworld_card(out: Path, *, model: str, runs: Path, seeds: int) -> None:
    """Measure every task of the microworld and write its card; runs that are done are not repeated."""
    from bara_pyro.cli.card import measure, write_card
    from bara_pyro.core.backbone import load_backbone

    backbone = load_backbone(model)

    def lora(task: str, seed: int) -> dict[str, float]:
        settings = {"method": "lora", "backbone.name": model, "task.name": task, "seed": seed}
        config = load_config(overrides={**settings, "predict.samples": [0]})
        system = build_system(config, backbone)
        return run(config, runs / f"{task}-{seed}", resume=True, system=system)["metrics"]["0"]

    c = load_config().train
    recipe = (
        f"The settings are the default ones: {c.steps} steps of {c.batch_size} rows, rate {c.lr:g}, r = 8."
    )
    write_card(out, measure(backbone, lora, seeds), recipe)
    say(f"Written to {out}")

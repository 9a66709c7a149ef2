"""Reproduce the tables of the BaRA paper (arXiv 2606.29184) in one command.

    python -m experiments paper --model Qwen/Qwen2.5-7B --out runs/paper --device cuda
    python -m experiments paper --model Qwen/Qwen2.5-7B --out runs/paper --device cuda --dry-run

Data sets, splits, prompts and settings are the published ones; an option that you type replaces any of them
and is named in the results. OUT receives a page for each table, in the paper's layout and with its figures
beside, records.jsonl with a line for each run, and the folders of the runs. --resume continues after a stop.
"""

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from bara_pyro.atomic import write_json, write_jsonl, write_text
from bara_pyro.cli.terminal import say
from bara_pyro.errors import BackboneError, ConfigError, Stopped, unknown
from bara_pyro.report.style import save
from bara_pyro.report.table import markdown
from bara_pyro.runs.assignments import assigned
from bara_pyro.runs.config import load_config
from bara_pyro.runs.devices import find_device
from bara_pyro.runs.sections import TaskConfig
from bara_pyro.untrusted.files import read_json
from experiments.engine.arguments import ARGUMENTS, positive
from experiments.engine.record import Record, read_record
from experiments.engine.sweep import sweep
from experiments.paper import alignment
from experiments.paper.figures import figure_of
from experiments.paper.plan import model_of, show_plan
from experiments.paper.prompts import PROMPTS
from experiments.paper.protocol import ARMS, OPEN, PROTOCOL, SAMPLES, PaperRun, published
from experiments.paper.runs import Setup
from experiments.paper.tables import PUBLISHED, TABLES, runs_of

# Option -> the dotted setting, its type and the protocol's value.
SETTINGS = {
    "--steps": ("train.steps", int, "training steps"),
    "--lr": ("train.lr", float, "learning rate"),
    "--batch-size": ("train.batch_size", int, "rows a step"),
    "--max-length": ("task.max_length", int, "tokens of a row"),
    "--dtype": ("backbone.dtype", str, "of the frozen weights"),
}
READ = {"max_length", "too_long", "labels", "chat", "system", "text_score"}  # of a task's settings
OPTIONS = {f"task.{name}": "--tasks or --train-rows" for name in {*TaskConfig.model_fields} - READ}
OPTIONS |= {**ARGUMENTS, "predict.samples": "--samples", **{s[0]: option for option, s in SETTINGS.items()}}


def parser() -> ArgumentParser:
    """Return the options of the command."""
    found = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = found.add_argument
    add("--model", required=True, metavar="NAME", help="language model: a hub name or a local folder")
    add("--out", type=Path, default=Path("runs/paper"), metavar="DIR",
        help="folder of the results; default: %(default)s")  # fmt: skip
    tables = [*TABLES, "all"]
    add("--table", nargs="+", default=["in_distribution"], choices=tables, metavar="TABLE",
        help=f"tables to reproduce: {', '.join(tables)}; default: in_distribution")  # fmt: skip
    add("--methods", nargs="+", choices=[*ARMS], metavar="METHOD",
        help=f"only these: {', '.join(ARMS)}; default: all that a table has")  # fmt: skip
    add("--tasks", nargs="+", metavar="TASK", help="only these data sets; default: all that a table has")
    add("--seeds", type=positive, default=3, metavar="N", help="repeat with the seeds 0 to N - 1; default: 3")
    add("--data-dir", type=Path, metavar="DIR",
        help="read DIR/<data set>/<split>.jsonl, in the hub's columns, instead of the hub")  # fmt: skip
    add("--prompt", choices=[*PROMPTS], default="bayesian-peft",
        help="prompts; default: %(default)s (published)")  # fmt: skip
    for option, (key, kind, words) in SETTINGS.items():
        add(option, type=kind, metavar="N", help=f"{words}; default: {PROTOCOL[key]} (published)")
    add("--samples", type=positive, metavar="S", help=f"posterior draws; default: {SAMPLES} (published)")
    add("--train-rows", type=positive, metavar="N",
        help="use the first N training rows; default: all published")  # fmt: skip
    add("--test-rows", type=positive, metavar="N",
        help="use the first N test rows, for alignment also prompts, problems and rows of a taxed task; "
        "default: all")  # fmt: skip
    add("--judge", default=alignment.JUDGE, metavar="NAME",
        help="alignment: reward model, hub name or folder; default: %(default)s (published)")  # fmt: skip
    add("--replies", type=positive, default=alignment.Replies.replies, metavar="N",
        help="alignment: replies for each prompt; default: %(default)s (published)")  # fmt: skip
    add("--new-tokens", type=positive, default=alignment.Replies.new_tokens, metavar="N",
        help="alignment: most tokens of a reply; default: %(default)s")  # fmt: skip
    add("--taxed", nargs="+", choices=alignment.TAXED, default=alignment.TAXED, metavar="TASK",
        help=f"alignment: only these tasks of the tax: {', '.join(alignment.TAXED)}")  # fmt: skip
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting; can be repeated")
    add("--device", default="cpu", metavar="NAME", help="cpu, cuda, cuda:1, mps; default: %(default)s")
    add("--workers", type=positive, default=1, metavar="N",
        help="runs at a time: with cuda by Ray, one a GPU, else processes; default: 1")  # fmt: skip
    add("--resume", action="store_true", help="continue in OUT; failed runs are tried again")
    add("--dry-run", action="store_true", help="print the plan, its cost and what is missing, and stop")
    add("--calibrate", action="store_true", help="with --dry-run: measure for two minutes here, not estimate")
    return found


def typed_settings(args: Namespace) -> dict[str, Any]:
    """Return the dotted settings that were typed; a `ConfigError` for one that has an option of its own."""
    options = {key: getattr(args, name[2:].replace("-", "_")) for name, (key, _, _) in SETTINGS.items()}
    found = {key: value for key, value in options.items() if value is not None}
    if args.samples is not None:
        found["predict.samples"] = [0, args.samples]
    own = assigned(args.set)
    for key in own.keys() & OPTIONS.keys():
        raise ConfigError(f"--set {key}={own[key]} has no effect here: use {OPTIONS[key]}.")
    return found | own


def planned(args: Namespace, setup: Setup) -> list[PaperRun]:
    """Return the runs of the tables asked for.

    Raises:
        ConfigError: a table has none of the methods or data sets, or itself sets what was typed; or a
            setting is unknown or out of range.
    """
    arms = args.methods or [*ARMS]
    found = []
    for run in runs_of(args.table, arms, args.seeds):
        if args.tasks and run.task not in args.tasks:
            continue
        for key in setup.typed.keys() & run.settings.keys() if run.variant else ():
            raise ConfigError(f"The tables asked for vary {key}: leave {key}={setup.typed[key]} out.")
        load_config(overrides=setup.settings(run))
        found.append(run)
    if not found:
        raise ConfigError("The tables asked for have none of these methods on these data sets: name others.")
    return found


def check(args: Namespace) -> None:
    """Raise a `ConfigError` for options that contradict each other or have no effect."""
    if args.calibrate and not args.dry_run:
        raise ConfigError("--calibrate measures for a plan: add --dry-run.")
    known = {run.task for run in runs_of(TABLES, [*ARMS], 1)}
    for task in args.tasks or ():
        if task not in known:
            raise ConfigError(unknown("data set", task, known))


def open_folder(setup: Setup, *, resume: bool) -> None:
    """Write down what results depend on, or check that it is what the folder has.

    Raises:
        ConfigError: there are results and they are not to be resumed, or they have other settings.
    """
    said, path = setup.said(), setup.out / "settings.json"
    if not path.exists():
        setup.out.mkdir(parents=True, exist_ok=True)
        write_json(path, said)
    elif not resume:
        raise ConfigError(f"{setup.out} holds results: continue with --resume, or give another --out.")
    for key, value in read_json(path).items():
        if said[key] != value:
            raise ConfigError(
                f"{setup.out} holds results with {key}={value}, not {said[key]}: repeat the options as "
                "they were, or give another --out."
            )


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in settings.items())


def page(name: str, setup: Setup, records: dict[str, Record], arms: Sequence[str], seeds: int) -> str:
    """Return a table of the paper as a page: scores, the settings behind them, and what went wrong."""
    table = TABLES[name]
    arms = [arm for arm in table.arms if arm in arms]
    parts = [f"# {table.title}\n", f'{setup.model}. Rows marked "paper": {PUBLISHED["source"]}.\n']
    parts += [markdown(part.table(records, arms)) for part in table.parts]
    done = [(run, records[run.name]) for run in table.runs(arms, seeds) if run.name in records]
    if name == "alignment":
        parts += [alignment.described(record) for _, record in done if "failed" not in record][:1]
    if figure := figure_of(name, [record for _, record in done]):
        save(figure, setup.out / f"{name}.png")
        parts.append(f"![{table.title}]({name}.png)\n")
    rest, given = published((table.variants or {}).get("", {}), setup.typed)
    given |= setup.limits()
    parts.append(f"## Settings\n\nPublished: {_listed(rest)}.\n")
    if given:
        parts.append(f"**Not published, but typed**: {_listed(given)}.\n")
    said = [f"- {point}\n" for point in (alignment.OPEN if name == "alignment" else OPEN)]
    said += [f"- {ARMS[arm].name}: {'; '.join(ARMS[arm].open)}\n" for arm in arms if ARMS[arm].open]
    parts.append(f"## What the paper leaves open, and how it is read here\n\n{''.join(said)}")
    failed = [f"- {line}\n" for run, record in done for line in setup.job(run).failures(record)]
    if failed:
        parts.append(f"## Failed runs\n\n{''.join(failed)}")
    return "\n".join(parts)


def main() -> None:
    """Run the command."""
    args = parser().parse_args()
    args.table = [*TABLES] if "all" in args.table else args.table
    args.taxed = tuple(args.taxed)
    check(args)
    given = {name: getattr(args, name) for field in fields(Setup) if hasattr(args, name := field.name)}
    setup = Setup(**given, typed=typed_settings(args))
    runs = planned(args, setup)
    if args.dry_run:
        show_plan(args.table, runs, setup, workers=args.workers, calibrate=args.calibrate)
        return
    find_device(setup.device)
    if unread := model_of(setup.model)[1]:
        raise BackboneError(f"Cannot read the {unread[0]}: check the name, the network and your access.")
    open_folder(setup, resume=args.resume)
    on_gpus, jobs = setup.device.startswith("cuda"), [setup.job(run) for run in runs]
    launcher = "serial" if args.workers == 1 else "ray" if on_gpus else "processes"
    try:
        sweep(jobs, launcher=launcher, workers=args.workers, retry_failed=args.resume)
    except KeyboardInterrupt as stop:
        say(f"Stopped. Continue with the same command and --resume: {setup.out} holds all progress.")
        sys.exit(getattr(stop, "code", Stopped.code))
    kept = sorted((setup.out / "runs" / "records").glob("*.json"))  # of other tables, too
    records = {path.stem: read_record(path) for path in kept}
    write_jsonl(setup.out / "records.jsonl", records.values())
    for name in args.table:
        write_text(setup.out / f"{name}.md", page(name, setup, records, args.methods or [*ARMS], args.seeds))
    pages = ", ".join(str(setup.out / f"{name}.md") for name in args.table)
    say(f"Read {pages}.")

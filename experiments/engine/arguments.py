"""The command line that all experiments share."""

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any, TypeVar

from bara_pyro.errors import BaraError, ConfigError
from bara_pyro.methods import METHODS
from bara_pyro.runs.assignments import parse_assignment
from experiments.engine.launchers import LAUNCHERS
from experiments.engine.spaces import searched

Kind = TypeVar("Kind")


def command_line(about: str | None, **more: Any) -> ArgumentParser:
    """Return a parser without arguments, which says what it is for as it is written."""
    return ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter, **more)


def experiment_parser(
    description: str | None,
    *,
    runs: str,
    methods: Sequence[str] | None = None,
    tasks: Sequence[str] = ("micro-wgs", "micro-arce"),
    steps: int | None = 1000,
    seeds: int = 3,
    finished: bool = True,
) -> ArgumentParser:
    """Return a parser with the arguments of every experiment and their defaults; it adds its own to it.

    `finished`: whether it can write down what is finished, as all but a search can, which needs every trial.
    """
    parser = command_line(description)
    add = parser.add_argument
    add("--model", metavar="NAME", help="language model: a hub name or a local folder; default: microworld")
    add("--data-dir", metavar="DIR", type=Path, help="real tasks from DIR/<task>/<split>.jsonl, not the hub")
    add("--methods", metavar="NAME", nargs="+", choices=sorted(METHODS), default=methods or searched(),
        help="methods to compare, see `bara methods`; default: %(default)s")  # fmt: skip
    add("--tasks", metavar="NAME", nargs="+", default=list(tasks),
        help="tasks to train on, see `bara tasks`; default: %(default)s")  # fmt: skip
    add("--seeds", metavar="N", type=positive, default=seeds,
        help="repeat everything with the seeds 0 to N - 1; default: %(default)s")  # fmt: skip
    add(
        "--steps",
        metavar="N",
        type=length,
        default=steps,
        help="training steps a run, or 'default': by the number of training rows, as `bara train` does; "
        f"default: {'by rows' if steps is None else steps}",
    )
    add("--runs", metavar="DIR", type=Path, default=Path(runs),
        help="folder of the runs; those that it holds are not repeated; default: %(default)s")  # fmt: skip
    add("--workers", metavar="N", type=positive, default=2,
        help="runs worked on at a time, each on one core; default: %(default)s")  # fmt: skip
    add("--launcher", choices=tuple(LAUNCHERS), default="processes",
        help="processes of this machine, one run after the other in this process, or a Ray cluster (that of "
        "RAY_ADDRESS, or a local one); default: %(default)s")  # fmt: skip
    add("--set", metavar="KEY=VALUE", action="append", default=[], dest="assignments",
        help="any other setting of all runs, for example task.too_long=drop; can be repeated")  # fmt: skip
    add("--device", metavar="NAME", help="where to compute: cpu, cuda, cuda:1, mps; default: cpu")
    add("--reuse", choices=("any", "same"),
        help="what to do with finished runs that other code made: 'any' takes them, 'same' makes them again; "
        "default: say so and stop")  # fmt: skip
    add("--retry-failed", action="store_true", help="try again the runs that failed before")
    add("--strict", action="store_true", help="end with an error if a run failed; failures are listed anyway")
    if finished:
        add("--finished", action="store_true",
            help="run nothing and write down what is finished, arms with fewer seeds included")  # fmt: skip
    return parser


def positive(text: str) -> int:
    """Return a whole number above 0, for argparse."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def length(text: str) -> int | None:
    """Return a number of steps, for argparse; None for "default"."""
    return None if text == "default" else positive(text)


def setting(default: int, quick: int, said: str) -> Any:
    """Return a field of a dataclass of settings: an argument that has another default under --quick."""
    return field(default=default, metadata={"quick": quick, "help": f"{said}; default: %(default)s"})


def quick_parser(about: str | None, *kinds: type) -> tuple[ArgumentParser, bool]:
    """Return a parser with --quick and an argument for each field of `kinds`, and whether that is given."""
    first = ArgumentParser(add_help=False)
    first.add_argument("--quick", action="store_true", help="tiny numbers, all files under runs")
    hasty = first.parse_known_args()[0].quick
    parser = command_line(about, parents=[first])
    for one in (one for kind in kinds for one in fields(kind)):
        default = one.metadata["quick"] if hasty else one.default
        kind = int if one.name == "seed" else positive
        parser.add_argument(
            f"--{one.name}", metavar="N", type=kind, default=default, help=one.metadata["help"]
        )
    return parser, hasty


def given(kind: type[Kind], args: Namespace) -> Kind:
    """Return the dataclass of settings that the arguments hold."""
    return kind(**{one.name: getattr(args, one.name) for one in fields(kind)})  # type: ignore[arg-type]


def shared_settings(args: Namespace) -> dict[str, Any]:
    """Return the dotted settings that all runs of an experiment take from its arguments."""
    return {
        "backbone.name": args.model,
        "backbone.device": args.device,
        "task.data_dir": None if args.data_dir is None else str(args.data_dir),
        "train.steps": args.steps,
        **dict(map(parse_assignment, args.assignments)),
    }


def sweep_options(args: Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `experiments.engine.sweep.sweep` that the arguments set."""
    return {name: getattr(args, name) for name in ("launcher", "workers", "retry_failed", "strict", "reuse")}


def start(main: Callable[[], None]) -> None:
    """Run an experiment; a mistake of the user's is one sentence on stderr and exit code 2."""
    try:
        main()
    except BaraError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)

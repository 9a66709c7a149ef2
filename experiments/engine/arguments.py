"""The command line that all experiments share."""

import sys
from argparse import Action, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bara_pyro.cli.terminal import outlast_readers
from bara_pyro.cli.wrap import terminated_as_interrupted
from bara_pyro.errors import BaraError, ConfigError, Stopped
from bara_pyro.methods import METHODS
from bara_pyro.runs.assignments import assigned
from experiments.engine.launchers import LAUNCHERS
from experiments.engine.methods import studied
from experiments.engine.results import results_option

# Settings that have an argument of their own.
ARGUMENTS = {
    "backbone.name": "--model",
    "backbone.device": "--device",
    "task.data_dir": "--data-dir",
    "train.steps": "--steps",
    "task.name": "--tasks",
    "seed": "--seeds",
    "method": "--methods",
    "method.name": "--methods",
}


@dataclass(frozen=True)
class Preset:
    """A value of a setting that the runs of a study have unless somebody types another."""

    value: Any


class Typed(Action):
    """Store a value, and in `typed` that it was given: it may be the default's; refuse another beside it."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option: Any = None) -> None:
        """Store both."""
        given = namespace.typed.get(self.dest, values)
        if given != values:
            one, other = (" ".join(map(str, v if isinstance(v, list) else [v])) for v in (given, values))
            parser.error(f"{option} {one} and {option} {other} contradict each other")
        setattr(namespace, self.dest, values)
        namespace.typed = {**namespace.typed, self.dest: values}


def command_line(about: str | None, **more: Any) -> ArgumentParser:
    """Return a parser without arguments, which says what it is for as it is written."""
    parser = ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter, **more)
    parser.register("action", None, Typed)  # of every option that says nothing else of itself
    parser.set_defaults(typed={})
    return parser


def experiment_parser(
    description: str | None,
    *,
    methods: Sequence[str] | None = None,
    tasks: Sequence[str] = ("micro-wgs", "micro-arce"),
    steps: int | None = 1000,
) -> ArgumentParser:
    """Return a parser with the arguments of every experiment and their defaults; it adds its own to it.

    Args:
        description: what the command says of itself.
        methods: default of --methods, all with chosen settings if None.
        tasks: default of --tasks.
        steps: default of --steps, by the number of training rows if None.
    """
    parser = command_line(description)
    add = parser.add_argument
    add("--model", metavar="NAME", help="language model: a hub name or a local folder; default: microworld")
    add("--data-dir", metavar="DIR", type=Path, help="real tasks from DIR/<task>/<split>.jsonl, not the hub")
    known = {"metavar": "NAME", "choices": sorted(METHODS)}
    add("--methods", **option(methods or studied(), "methods to compare, see `bara methods`", **known))
    add("--tasks", **option(tasks, "tasks to train on, see `bara tasks`", metavar="NAME"))
    add("--seeds", **option(3, "repeat everything with the seeds 0 to N - 1", metavar="N"))
    said = "training steps a run, or 'default': by the number of training rows, as `bara train` does"
    by_rows = f"{said}; default: {'by rows' if steps is None else steps}"
    add("--steps", metavar="N", type=length, default=steps, help=by_rows)
    add("--runs", **option(Path("runs/study"), "folder of the runs; what it holds is not repeated",
        metavar="DIR", type=Path))  # fmt: skip
    add("--workers", **option(2, "runs worked on at a time, each on one core", metavar="N"))
    said = (
        "processes of this machine, one run after the other in this process, or a Ray cluster (that of "
        "RAY_ADDRESS, or a local one)"
    )
    add("--launcher", **option("processes", said, choices=tuple(LAUNCHERS)))
    add("--set", metavar="KEY=VALUE", action="append", default=[], dest="assignments",
        help="any other setting of all runs, for example task.too_long=drop; can be repeated; it takes the "
        "place of a chosen one, and is refused where the study itself sets it")  # fmt: skip
    add("--device", metavar="NAME", help="where to compute: cpu, cuda, cuda:1, mps; default: cpu")
    add("--retry-failed", action="store_true", help="try again the runs that failed before")
    results_option(parser)
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


def option(default: Any, words: str, **more: Any) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for an option with a default.

    Whole numbers are above 0; several values are taken where the default is several.

    >>> option([2, 3], "sizes")["nargs"], option(0.1, "a rate")["help"]
    ('+', 'a rate; default: %(default)s')
    """
    several = isinstance(default, list | tuple)
    kind = {int: positive, float: float, str: str}.get(type(default[0] if several else default))
    found = {"default": list(default) if several else default, "help": f"{words}; default: %(default)s"}
    return found | ({"type": kind} if kind else {}) | ({"nargs": "+"} if several else {}) | more


def typed_settings(args: Namespace) -> dict[str, Any]:
    """Return the dotted settings that were typed: --model, --device, --data-dir, --steps and --set.

    Raises:
        ConfigError: a setting has an argument of its own, or was typed twice.
    """
    folder = None if args.data_dir is None else str(args.data_dir)
    own = {"backbone.name": args.model, "backbone.device": args.device, "task.data_dir": folder}
    found = {key: value for key, value in own.items() if value is not None}
    if "steps" in args.typed:
        found["train.steps"] = args.steps
    for key, value in assigned(args.assignments).items():
        if key in ARGUMENTS:
            raise ConfigError(f"--set {key}={value}: studies have an argument for it, {ARGUMENTS[key]}.")
        found[key] = value
    return found


def preset(settings: Mapping[str, Any]) -> dict[str, Preset]:
    """Return settings as what the runs of a study have unless somebody types others."""
    return {key: Preset(value) for key, value in settings.items()}


def run_settings(args: Namespace, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dotted settings of a run of a study: what was typed takes the place of a `Preset`.

    Args:
        args: of `experiment_parser`.
        own: what the study sets.

    Raises:
        ConfigError: a setting was typed that the study itself sets to something else.
    """
    typed = typed_settings(args)
    chosen = {key: value.value for key, value in own.items() if isinstance(value, Preset)}
    steps = {} if args.steps is None else {"train.steps": args.steps}
    found = {**steps, **chosen, **typed}
    for key, value in own.items():
        if isinstance(value, Preset):
            continue
        for given in (given for given in typed if overlaps(given, key)):
            if (given, typed[given]) != (key, value):
                raise ConfigError(
                    f"{given}={typed[given]} was given, and this study itself sets {key} to {value}: leave "
                    f"{ARGUMENTS.get(given, f'--set {given}')} out."
                )
        found[key] = value
    return found


def overlaps(one: str, other: str) -> bool:
    """Whether two dotted keys are of one setting, or one of them of a part of the other's."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def start(main: Callable[[], None]) -> None:
    """Run an experiment; a mistake of the user's is one sentence on stderr and exit code 2.

    SIGTERM and SIGHUP stop it like Ctrl-C, so that it can say what was saved.
    """
    outlast_readers()
    try:
        with terminated_as_interrupted():
            main()
    except Stopped as stop:
        sys.exit(stop.code)
    except BaraError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)

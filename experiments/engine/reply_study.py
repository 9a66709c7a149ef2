"""A study of sampled replies: models that learnt replies, trained once, sampled from once, and kept."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bara_pyro.runs.system import System
from experiments.engine.alignment_tax import SAMPLES, Tax
from experiments.engine.arguments import experiment_parser, positive, preset, run_settings
from experiments.engine.job import Job
from experiments.engine.read_off import about_runs, read_off
from experiments.engine.sampled import FEW, Sampling, sampled

METHODS = ("lora", "blob", "scalabl", "bara", "bara-gate")
COMPLETION = {"task.likelihood": "completion"}
Settings = Callable[[str], Mapping[str, Any]]
"""A method -> its dotted settings."""


@dataclass(frozen=True)
class Look:
    """What is looked at in every model.

    Attributes:
        sampling: what is asked.
        tax: what it has lost elsewhere; None: not asked.
        facts: what results depend on beside that, and the page may name.
    """

    sampling: Sampling
    tax: Tax | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def run(
    name: str,
    about: str | None,
    task: str,
    look: Callable[[Namespace], Look],
    settings: Settings,
    *,
    steps: int,
    replies: int,
    runs: str = "runs/replies",
    options: Mapping[str, Mapping[str, Any]],
) -> None:
    """Train what is missing, sample from what has not been, write after each.

    Args:
        name: of the study and of its results.
        about: what its command says of itself.
        task: that is learnt.
        look: arguments -> what is looked at.
        settings: of every method.
        steps: default of --steps.
        replies: default of --replies, to a prompt.
        runs: default of --runs.
        options: further arguments: name -> keyword arguments of `add_argument`.
    """
    parser = experiment_parser(about, runs=runs, methods=METHODS, tasks=None, steps=steps)
    add = parser.add_argument
    add("--replies", type=positive, default=replies, help="replies a prompt; default: %(default)s")
    for option, more in options.items():
        add(option, **more)
    args = parser.parse_args()
    asked = look(args)

    def found(system: System, args: Namespace) -> dict[str, Any]:
        return sampled(system, asked.sampling, args.replies, asked.tax)

    shared = {**COMPLETION, "task.name": task}
    jobs = {
        (method, seed): Job(
            run_settings(args, {**shared, "method": method, "seed": seed, **preset(settings(method))})
        )
        for seed in range(args.seeds)
        for method in args.methods
    }
    temperatures = list(asked.sampling.temperatures)
    about_all = about_runs(
        args, "replies", task=task, samples=SAMPLES, few=FEW, temperatures=temperatures, **asked.facts
    )
    read_off(name, jobs, ("method", "seed"), found, about_all, args, by_hash=True)

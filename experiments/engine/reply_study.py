"""A study of sampled replies: models that learnt replies, trained once, sampled from once, and kept."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

from bara_pyro.runs.system import System
from experiments.engine.arguments import experiment_parser, positive, shared_settings
from experiments.engine.job import Job
from experiments.engine.read_off import about_runs, read_off
from experiments.engine.results import results_option
from experiments.engine.sampled import FEW, NUMBERS, SAMPLES, TEMPERATURES, Score, sampled
from experiments.engine.search import CHOICES_REPLIES, chosen

METHODS = ("lora", "blob", "scalabl", "bara", "bara-gate")
COMPLETION = {"task.likelihood": "completion"}


def run(
    name: str,
    about: str | None,
    task: str,
    asked: Callable[[], tuple[Sequence[str], Score]],
) -> None:
    """Train what is missing, sample from what has not been, write after each.

    Args:
        name: of the study and of its results.
        about: what its command says of itself.
        task: that is learnt.
        asked: gives the test prompts and the score of a reply to each.
    """
    parser = experiment_parser(about, runs="runs/replies", methods=METHODS, tasks=(task,), steps=400)
    add = parser.add_argument
    add("--replies", type=positive, default=max(NUMBERS), help="replies a prompt; default: %(default)s")
    add("--rows", type=positive, default=300,
        help="test rows of each task of questions; default: %(default)s")  # fmt: skip
    results_option(parser, name)
    args = parser.parse_args()
    prompts, score = asked()

    def look(system: System, args: Namespace) -> dict[str, Any]:
        return sampled(system, prompts, score, args)

    jobs = {
        (method, seed): Job({**shared_settings(args), **COMPLETION, "task.name": task, **settings})
        for seed in range(args.seeds)
        for method in args.methods
        for settings in [{"method": method, "seed": seed, **chosen(method, CHOICES_REPLIES)}]
    }
    settings = about_runs(
        args, "replies", "rows", task=task, samples=SAMPLES, few=FEW, temperatures=list(TEMPERATURES)
    )
    read_off(jobs, ("method", "seed"), look, settings, args, by_hash=True)

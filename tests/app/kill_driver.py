"""Trains in processes of its own, each killed by SIGKILL at a chosen moment and gone on with afterwards.

Run as a program by `test_app_kill.py`: one import for all the processes, which are forks of this one. The
moment is exact: the process sends itself the signal, which no handler, `finally` or buffer outlives.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from bara_pyro.runs import steps as stepping
from bara_pyro.runs import train as training
from bara_pyro.runs import writing
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import evaluate_system
from bara_pyro.runs.system import build_system


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(module: object, name: str, times: int = 1, late: bool = False) -> None:
    """Die when a function of a module is called for the given time, or when it has returned."""
    original, calls = getattr(module, name), [0]

    def wrapped(*args: object, **kwargs: object) -> object:
        calls[0] += 1
        result = original(*args, **kwargs) if late or calls[0] < times else None
        if calls[0] == times:
            die()
        return result

    setattr(module, name, wrapped)


# A run of 12 steps that keeps a checkpoint every 5: after steps 5 and 10.
MOMENTS: dict[str, Callable[[], None]] = {
    "before any checkpoint": lambda: die_at(stepping, "micro_batches", 4),
    "with the checkpoint written and not renamed": lambda: before_rename_of("checkpoint", 2),
    "between checkpoints": lambda: die_at(stepping, "micro_batches", 9),
    "with the adapters saved and not the guide": lambda: die_at(writing, "write_tensors", late=True),
    "with all saved and the checkpoint still there": lambda: die_at(training, "save_system", late=True),
    "while the scores are being written": lambda: before_rename_of("metrics", 1),
}


def before_rename_of(stem: str, times: int) -> None:
    """Die when a written file of that name is about to take its place for the given time."""
    original, calls = os.replace, [0]

    def replace(source: Path, target: Path) -> None:
        calls[0] += Path(target).name.startswith(stem)
        if calls[0] == times and Path(target).name.startswith(stem):
            die()
        original(source, target)

    os.replace = replace  # type: ignore[assignment]


def work(settings: dict, out: Path) -> None:
    system = build_system(load_config(overrides=settings))
    training.train(system, out, resume=True)
    evaluate_system(system, out)


def run(settings: dict, out: Path, arm: Callable[[], None] | None = None) -> int:
    """Train and evaluate in a fork; return how it ended."""
    child = os.fork()
    if child == 0:
        if arm is not None:
            arm()
        work(settings, out)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    settings, root = json.loads(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    work({**settings, "train.steps": 1}, root / "warm")  # imports what is imported late, once for all forks
    ends = {"": [run(settings, root / "uninterrupted")]}
    for number, (moment, arm) in enumerate(MOMENTS.items()):
        ends[moment] = [run(settings, root / str(number), arm), run(settings, root / str(number))]
    # Killed again and again, a few steps further each time.
    often = [
        run(settings, root / "often", lambda steps=steps: die_at(stepping, "micro_batches", steps))
        for steps in (7, 6, 2)
    ]
    ends["often"] = [*often, run(settings, root / "often")]
    print(json.dumps(ends))


if __name__ == "__main__":
    main()

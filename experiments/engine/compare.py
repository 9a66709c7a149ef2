"""An experiment's arms against LoRA and against the best baseline, from the predictions in the run folders.

What is computed, and what the intervals mean: `experiments.engine.differences`.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bara_pyro.errors import DataError
from experiments.engine.differences import Run, compare
from experiments.engine.record import load_predictions
from experiments.engine.search import CHOICES, load_choices

LORA, OURS = "lora", ("bara", "bara-gate")


def compare_study(
    runs: Sequence[Mapping[str, Any]],
    folder: Path,
    references: Sequence[str] | None = None,
    *,
    shifted: Sequence[str] = (),
    choices: Path = CHOICES,
) -> list[dict[str, Any]]:
    """Compare every arm of an experiment with the references.

    Args:
        runs: `hash`, `arm`, `task` and `seed` of each run that finished.
        folder: of the runs: folder/<hash>/predictions.jsonl.
        references: arms; LoRA and the best baseline if None.
        shifted: compare on the test rows of these tasks instead of on those of the runs' own.
        choices: the file of `experiments.engine.search`, which says which baseline is the best.

    Returns:
        See `compare`.

    Raises:
        DataError: there is no reference among the arms, predictions are missing, or runs of one task were
            not scored on the same rows.
    """
    if references is None:
        references = default_references([run["arm"] for run in runs], choices)
    return compare(read_predictions(runs, folder, shifted), references)


def default_references(arms: Sequence[str], choices: Path = CHOICES) -> list[str]:
    """Return the arms to compare with: LoRA and the best baseline, those that there are.

    Raises:
        DataError: there is neither among the arms.
    """
    found = [LORA] if LORA in arms else []
    best = best_baseline(arms, choices)
    if best is not None and best not in found:
        found.append(best)
    if not found:
        raise DataError(f"None of the arms {', '.join(dict.fromkeys(arms))} is a reference: name one.")
    return found


def best_baseline(arms: Sequence[str], choices: Path = CHOICES) -> str | None:
    """Return the arm, not one of ours, of the lowest validation NLL (mean over the tasks of the search).

    Test rows have no say in it. None where no arm has been searched.

    Raises:
        DataError: the searches of two arms are not comparable: other tasks, steps, seeds or models.
    """
    searched = {
        arm: choice for arm, choice in load_choices(choices).items() if arm in arms and arm not in OURS
    }
    abouts = {
        arm: {k: v for k, v in c.items() if k not in ("space", "trials", "chosen")}
        for arm, c in searched.items()
    }
    for arm, about in abouts.items():
        first = next(iter(abouts))
        if about != abouts[first]:
            raise DataError(
                f"{arm} and {first} were not searched alike ({about} against {abouts[first]}): search both "
                "again with the same tasks, steps and seeds."
            )
    nll = {arm: min(_finite(trial["nll"]) for trial in choice["trials"]) for arm, choice in searched.items()}
    return min(nll, key=nll.__getitem__) if nll else None


def _finite(value: float | None) -> float:
    """Return a stored score; what JSON cannot hold is stored as null."""
    return math.inf if value is None else value


def read_predictions(
    runs: Sequence[Mapping[str, Any]], folder: Path, shifted: Sequence[str] = ()
) -> dict[str, dict[str, dict[int, Run]]]:
    """Return the predictions of runs: task -> arm -> seed; with `shifted` those on these tasks.

    Raises:
        DataError: a run has none, or two runs of one arm and seed have predictions on one shifted task.
    """
    found: dict[str, dict[str, dict[int, Run]]] = {}
    for run in runs:
        out = folder / run["hash"]
        places = {name: out / "evaluation" / f"{name}-test" for name in shifted} or {run["task"]: out}
        for task, place in places.items():
            seeds = found.setdefault(task, {}).setdefault(run["arm"], {})
            if run["seed"] in seeds:
                raise DataError(
                    f"The arm {run['arm']!r} has two runs of seed {run['seed']} on {task}: compare the "
                    "runs of one training task at a time."
                )
            seeds[run["seed"]] = load_predictions(place)
    return found

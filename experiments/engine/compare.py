"""A study's arms against LoRA and against the best baseline, from its stored rows.

What is computed, and what the intervals mean: `experiments.engine.differences`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bara_pyro.errors import DataError
from experiments.engine.differences import Contrast, compare
from experiments.engine.methods import tagged
from experiments.engine.record import number
from experiments.engine.rehearsal import LORA_REHEARSED
from experiments.engine.results import RESULTS, read_results
from experiments.engine.rows import RunRows, rows_of_study
from experiments.engine.search import CHOICES, load_choices

PRIMARY = Contrast("bara", "lora", "nll")
OWN = ("space", "trials", "chosen")  # of each method; all else of a search has to be alike


@dataclass(frozen=True)
class Comparisons:
    """How a study compares its arms.

    Attributes:
        primary: the contrast that is declared; all others are secondary. The printed algorithm with LoRA, in
            likelihood, unless a study asks something else.
        tested_on: shifted tasks whose rows count instead of those of the runs' own tasks.
        choices: the search whose validation scores say which baseline is the best.
    """

    primary: Contrast = PRIMARY
    tested_on: tuple[str, ...] = ()
    choices: Path = CHOICES


def compare_study(runs: Sequence[RunRows], comparisons: Comparisons) -> list[dict[str, Any]]:
    """Compare every arm of a study with LoRA, the best baseline and the declared reference; see `compare`.

    Raises:
        DataError: there is no reference among the arms, no rows of the tasks that are asked for, or runs of
            one task were not scored on the same rows.
    """
    wanted = comparisons.tested_on
    rows = [run for run in runs if (run.tested_on in wanted if wanted else run.tested_on == run.task)]
    references = default_references([run.arm for run in rows], comparisons.choices)
    declared = comparisons.primary.reference
    if declared not in references and any(run.arm == declared for run in rows):
        references.append(declared)
    return compare(rows, references, comparisons.primary)


def write_comparisons(study: str, comparisons: Comparisons, results: Path = RESULTS) -> list[dict[str, Any]]:
    """Compute a study's comparisons from its stored rows, write them to its results and return them."""
    found = read_results(study, results)
    found.comparisons = compare_study(rows_of_study(study, results), comparisons)
    found.write()
    return found.comparisons


def default_references(arms: Sequence[str], choices: Path = CHOICES) -> list[str]:
    """Return the arms to compare with, LoRA and the best baseline; a `DataError` where there is neither.

    LoRA with a rehearsal is one where it is an arm: what it lacks by default has to be told from what it is.
    """
    found = [name for name in (*tagged("reference"), LORA_REHEARSED) if name in arms]
    best = best_baseline(arms, choices)
    if best is not None and best not in found:
        found.append(best)
    if not found:
        raise DataError(f"None of the arms {', '.join(dict.fromkeys(arms))} is a reference: name one.")
    return found


def best_baseline(arms: Sequence[str], choices: Path = CHOICES) -> str | None:
    """Return the arm, not one of ours, of the lowest validation NLL (mean over the tasks of the search).

    Test rows have no say in it. None where no arm has been searched; a `DataError` where two arms were not
    searched alike.
    """
    ours = tagged("ours")
    searched = {a: choice for a, choice in load_choices(choices).items() if a in arms and a not in ours}
    abouts = {arm: {k: v for k, v in c.items() if k not in OWN} for arm, c in searched.items()}
    for first, arm in pairwise(searched):
        if abouts[arm] != abouts[first]:
            raise DataError(
                f"{arm} and {first} were not searched alike ({abouts[arm]} against {abouts[first]}): search "
                "both again with the same tasks, steps and seeds."
            )
    nll = {arm: min(number(trial["nll"]) for trial in choice["trials"]) for arm, choice in searched.items()}
    return min(nll, key=nll.__getitem__) if nll else None

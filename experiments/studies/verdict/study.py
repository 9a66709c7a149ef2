"""The verdict of the confirmatory benchmark, from the stored rows of its worlds; nothing is run.

    python -m experiments verdict

What is computed, and from which worlds, was written down before any of them was made:
`experiments/studies/confirmatory/plan.md`. A figure of a world is the average over its six tasks; intervals
are Student's, of the worlds' figures. With fewer worlds than the plan has there is no verdict, only what has
been seen so far. Rows of `confirmatory_102` are of the primary contrast in world 102, those of
`confirmatory_aware_102` and `confirmatory_few_102` of secondary ones, which count once every world has them.
A language model that was made again for these, on another machine, is another one: `confirmatory_again_102`
is the rival of the distance-aware form on it, with choices of its own, which the distance-aware rival has
there, too:

    choices=experiments/studies/confirmatory/choices
    world='--model runs/worlds/102 --set task.world=102 --seeds 1'
    run="python -m experiments confirmatory $world --methods bara-gate temperature"
    $run --name confirmatory_aware_102 --tasks micro-obqa --set adapter.distance_aware=true
        --choices "$choices/102-{task}.json"
    $run --name confirmatory_again_102 --tasks micro-obqa --methods temperature
        --choices "$choices/again-102-{task}.json"
    python -m experiments search $world --methods temperature --tasks micro-wgs --set task.train_rows=80
        --steps 400 --lengths 200 800 --out $choices/few-102-micro-wgs.json      # micro-arcc: the same
    $run --name confirmatory_few_102 --tasks micro-wgs micro-arcc --set task.train_rows=80
        --choices "$choices/few-102-{task}.json"

`confirmatory_shorter_102` is the last one again, of the gate form alone and of the length that is the default
since the benchmark is over (`--methods bara-gate --steps 200`). `confirmatory_rehearsed_102` has the defaults
that came later still, a rehearsal (docs/calibrated.md), on language models made once more, the rival searched
again on each; `confirmatory_lora_102` is LoRA there with a rehearsal, which is not its default, and
`confirmatory_longer_102` the gate form by the default of since, 20 passes and halves that share no resident.
`confirmatory_doubling_102` is the default after that, 10 passes and twice as many where the rehearsal asks:

    bara microworld build --world 102 --seed 102 --out runs/worlds/102-again
    few='--model runs/worlds/102-again --set task.world=102 --seeds 1 --set task.train_rows=80'
    python -m experiments search $few --methods temperature --tasks micro-wgs --steps 400 --lengths 200 800
        --out $choices/rehearsed-102-micro-wgs.json      # micro-arcc: the same
    run="python -m experiments confirmatory $few --tasks micro-wgs micro-arcc
        --choices $choices/rehearsed-102-{task}.json"
    $run --name confirmatory_rehearsed_102 --methods bara-gate temperature lora bara
    $run --name confirmatory_lora_102 --methods lora --set adapter.calibrated=true
    $run --name confirmatory_longer_102 --methods bara-gate --steps 400
    $run --name confirmatory_doubling_102 --methods bara-gate --steps 200 --set train.may_double=true

`confirmatory_arms_102` has the plan's further arms that are by default, on all six tasks, by the code of the
plan on language models made again; the gate form is there once more, as what they are compared with:

    bara microworld build --world 102 --seed 102 --out runs/worlds/102-arms
    python -m experiments confirmatory --model runs/worlds/102-arms --set task.world=102 --seeds 1
        --name confirmatory_arms_102 --methods bara-gate bara lora
        --choices "$choices/102-{task}.json"      # holds none for these methods: they have their defaults

Those of 102 and 107 were run while the folders were called 102 and 107, as the first language models' were,
and would have had the hashes of their runs: the records have the later names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from bara_pyro.errors import DataError
from bara_pyro.metrics import accuracy, ece, error_auroc, holm, nll
from experiments.engine.arguments import command_line
from experiments.engine.results import RESULTS, Results
from experiments.engine.rows import RunRows, rows_of_study, rows_path
from experiments.engine.worlds import over_worlds, student_range
from experiments.page.spec import entry_study
from experiments.studies.confirmatory.study import NAME, PRIMARY
from experiments.studies.verdict.section import WORDS, parts, worlds_of

WORLDS = 6
Metric = Callable[[Any, Any], float]
# Of the tasks that were learnt, and of rows from elsewhere.
AT_HOME: Mapping[str, Metric] = {"nll": nll, "ece": ece, "acc": accuracy, "error_auroc": error_auroc}
SHIFTED = {"near": "micro-near", "far": "micro-far"}
AWARE, FEW, AGAIN, ARMS = ", distance-aware", ", 80 rows", ", made again", ", a further arm"
# By defaults that were chosen when the benchmark was over.
SHORTER, REHEARSED = ", 80 rows, 10 passes", ", 80 rows, rehearsed"
ASKED, LONGER = ", 80 rows, rehearsed as asked for", ", 80 rows, rehearsed, 20 passes"
DOUBLING = ", 80 rows, rehearsed, 10 passes or 20"
# Files of rows -> what their arms are called.
FURTHER = {
    **{"aware": AWARE, "few": FEW, "again": AGAIN},
    **{"shorter": SHORTER, "rehearsed": REHEARSED, "lora": ASKED, "longer": LONGER},
    **{"doubling": DOUBLING, "arms": ARMS},
}
REHEARSED_RIVAL, ARMS_GATE = PRIMARY.reference + REHEARSED, PRIMARY.arm + ARMS
# Between arms of the same language models, made again.
MADE_AGAIN: Mapping[str, tuple[str, str, Metric]] = {
    "rehearsed": (PRIMARY.arm + REHEARSED, REHEARSED_RIVAL, nll),
    "rehearsed_ece": (PRIMARY.arm + REHEARSED, REHEARSED_RIVAL, ece),
    "longer": (PRIMARY.arm + LONGER, REHEARSED_RIVAL, nll),
    "longer_ece": (PRIMARY.arm + LONGER, REHEARSED_RIVAL, ece),
    "doubling": (PRIMARY.arm + DOUBLING, REHEARSED_RIVAL, nll),
    "doubling_ece": (PRIMARY.arm + DOUBLING, REHEARSED_RIVAL, ece),
    "rehearsed_bara": ("bara" + REHEARSED, REHEARSED_RIVAL, nll),
    "rehearsed_lora": ("lora" + REHEARSED, REHEARSED_RIVAL, nll),
    "asked_lora": ("lora" + ASKED, REHEARSED_RIVAL, nll),
    "bara": ("bara" + ARMS, ARMS_GATE, nll),
    "bara_ece": ("bara" + ARMS, ARMS_GATE, ece),
    "lora": ("lora" + ARMS, ARMS_GATE, nll),
    "lora_ece": ("lora" + ARMS, ARMS_GATE, ece),
}
SECONDARY = ("ece", "acc", "error_auroc", "near_aware", "far_aware", "few")


def stored_worlds(results: Path = RESULTS) -> dict[str, list[RunRows]]:
    """Return world -> rows of its runs; a `DataError` where no world has any."""
    found = sorted(rows_path(NAME, results).parent.glob(f"{NAME}_[0-9]*.parquet"))
    if not found:
        raise DataError("No world has been run: see experiments/studies/confirmatory/plan.md.")
    worlds = {path.stem.removeprefix(f"{NAME}_"): rows_of_study(path.stem, results) for path in found}
    for (world, runs), (name, suffix) in product(worlds.items(), FURTHER.items()):
        path = rows_path(f"{NAME}_{name}_{world}", results)
        if path.exists():
            runs += [replace(run, arm=run.arm + suffix) for run in rows_of_study(path.stem, results)]
    return worlds


def task_scores(
    runs: Sequence[RunRows], arm: str, metric: Metric, tested_on: str | None = None
) -> list[float]:
    """Return a score of each task that an arm learnt, under the largest S; on the named rows if any."""
    own = [run for run in runs if run.arm == arm and run.tested_on == (tested_on or run.task)]
    if not own:
        raise DataError(f"A world has no run of {arm} that was tested on {tested_on or 'its own task'}.")
    return [metric(run.log_probs[max(run.log_probs)], run.labels) for run in own]


def differences(runs: Sequence[RunRows]) -> dict[str, float]:
    """Return what the first arm of the primary contrast has more than the other in a world, by contrast."""
    ours, theirs, there = PRIMARY.arm, PRIMARY.reference, {run.arm for run in runs}

    def difference(arm: str, reference: str, metric: Metric, tested_on: str | None = None) -> float:
        one, other = (fmean(task_scores(runs, name, metric, tested_on)) for name in (arm, reference))
        return one - other

    found = {name: difference(ours, theirs, metric) for name, metric in AT_HOME.items()}
    found |= {name: difference(ours, theirs, nll, task) for name, task in SHIFTED.items()}
    if ours + AWARE in there:
        # Of the language model that the distance-aware form has, where it was not the world's first one.
        plain = theirs + AGAIN if theirs + AGAIN in there else theirs
        for words, reference in (("aware", plain), ("both", theirs + AWARE)):
            aware = {name: difference(ours + AWARE, reference, nll, task) for name, task in SHIFTED.items()}
            found |= {f"{name}_{words}": value for name, value in aware.items()}
    if ours + FEW in there:
        found["few"] = difference(ours + FEW, theirs + FEW, nll)
        if ours + SHORTER in there:
            found["shorter"] = difference(ours + SHORTER, theirs + FEW, nll)
    found |= {
        name: difference(arm, reference, metric)
        for name, (arm, reference, metric) in MADE_AGAIN.items()
        if arm in there
    }
    return found


def contrasts(worlds: Mapping[str, Sequence[RunRows]]) -> dict[str, dict[str, Any]]:
    """Return `difference`, `low`, `high` and `p` of every contrast of which all worlds have runs.

    Secondary ones have a `p_holm`. The primary one is the wider of the interval of worlds as such and that
    of these worlds, which is kept beside it (`these_low`, `these_high`).

    Raises:
        DataError: fewer than two worlds, or a world lacks a run.
    """
    both = over_worlds(worlds, PRIMARY.arm, PRIMARY.reference, PRIMARY.metric)
    by_world = [differences(runs) for runs in worlds.values()]
    found: dict[str, dict[str, Any]] = {}
    for name in [name for name in WORDS if all(name in one for one in by_world)]:
        range_, p = student_range([one[name] for one in by_world])
        found[name] = {"difference": range_.difference, "low": range_.low, "high": range_.high, "p": p}
    found[PRIMARY.metric] |= {
        "low": both.decides.low,
        "high": both.decides.high,
        "these_low": both.these.low,
        "these_high": both.these.high,
    }
    others = [name for name in SECONDARY if name in found]
    for name, p in zip(others, holm([found[name]["p"] for name in others]), strict=True):
        found[name]["p_holm"] = p
    return found


def by_task(worlds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Return `difference`, `low`, `high` (nats) and `p_holm` of each task over worlds: exploratory.

    Args:
        worlds: of each arm of the primary contrast, task -> NLL.
    """
    tasks = list(worlds[0][PRIMARY.arm])
    ranges = [
        student_range([one[PRIMARY.arm][task] - one[PRIMARY.reference][task] for one in worlds])
        for task in tasks
    ]
    return {
        task: {"difference": found.difference, "low": found.low, "high": found.high, "p_holm": p}
        for task, (found, _), p in zip(tasks, ranges, holm([p for _, p in ranges]), strict=True)
    }


def verdict(worlds: int, low: float, high: float) -> str:
    """Return "met" or "missed" as the plan says, or that worlds are missing."""
    if worlds < WORLDS:
        return "no verdict yet"
    return "met" if high < 0 else "missed"


def main() -> None:
    """Read the worlds' rows and write what they say."""
    command_line(__doc__).parse_args()
    worlds = stored_worlds()
    results = Results(RESULTS / "verdict.json", "verdict", {"worlds": len(worlds), "planned": WORLDS})
    for world, runs in worlds.items():
        scores = {
            arm: dict(zip(_tasks(runs), task_scores(runs, arm, nll), strict=True))
            for arm in (PRIMARY.arm, PRIMARY.reference)
        }
        results.add(f"world {world}", {"world": world, "nll": scores, "differences": differences(runs)})
    for name, found in contrasts(worlds).items():
        results.add(name, {"metric": name, **found})
    for task, found in by_task([entry["nll"] for entry in worlds_of(results)]).items():
        results.add(task, {"task": task, **found})
    primary = results.entries[PRIMARY.metric]
    said = verdict(len(worlds), primary["low"], primary["high"])
    results.add("verdict", {"verdict": said, "worlds": len(worlds), "planned": WORLDS})
    print(f"{len(worlds)} of {WORLDS} worlds: {said}. Written to {results.path}.")


def _tasks(runs: Sequence[RunRows]) -> list[str]:
    return [run.task for run in runs if run.arm == PRIMARY.arm and run.tested_on == run.task]


STUDY = entry_study(
    "Confirmatory benchmark",
    "New worlds, language models and tasks on which nothing was developed, by a plan that was frozen before "
    "any of them was made (`experiments/studies/confirmatory/plan.md`): has BaRA's gate form at its "
    "defaults, without a validation row, a lower NLL than LoRA with rate, length and temperature chosen on "
    "validation rows?\n\n{worlds} of {planned} worlds, six tasks each, one training of each method a task.",
    main,
    parts,
    order=0,
)

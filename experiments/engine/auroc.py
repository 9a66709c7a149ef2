"""How well each run tells its errors, and rows from elsewhere, by its own doubt; with crossed intervals.

Errors are told by low confidence in the top label, rows from elsewhere by high predictive entropy. AUROC, in
percent: 50 is chance. What is compared, and what its interval means: `experiments.engine.differences`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bara_pyro.metrics import Drawn, Interval, crossed_interval
from bara_pyro.metrics.bootstrap import drawn_auroc, weighted_auroc
from experiments.engine.differences import LEVEL, RESAMPLES, paired_seeds, same_rows
from experiments.engine.record import entropy
from experiments.engine.rows import RunRows


@dataclass(frozen=True)
class Told:
    """Rows that one run was asked: how much it doubts each (`n`), and which it should doubt (bool, `n`)."""

    arm: str
    seed: int
    doubt: Tensor
    positive: Tensor
    clusters: tuple[str, ...]


def errors(runs: Sequence[RunRows], task: str) -> list[Told]:
    """Return each run's doubt in its answers on its own task, and which of them are wrong.

    Raises:
        DataError: the runs were not scored on the same rows, or not with the same S.
    """
    own = [run for run in runs if run.tested_on == run.task == task]
    samples = same_rows(task, own)
    found = []
    for run in own:
        confidence, top = run.log_probs[samples].max(dim=1)
        found.append(Told(run.arm, run.seed, -confidence, top != run.labels, run.clusters))
    return found


def shifted(runs: Sequence[RunRows], task: str, elsewhere: str) -> list[Told]:
    """Return each run's entropy on its own task's rows and on those of `elsewhere`, which are positive.

    Raises:
        DataError: as of `errors`.
    """
    there = {(run.arm, run.seed): run for run in runs if run.tested_on == elsewhere and run.task == task}
    own = [run for run in runs if run.tested_on == run.task == task and (run.arm, run.seed) in there]
    samples = same_rows(task, own)
    same_rows(elsewhere, list(there.values()))
    found = []
    for run in own:
        pair = [run, there[run.arm, run.seed]]
        doubt = torch.cat([entropy(one.log_probs[samples]) for one in pair])
        positive = torch.arange(len(doubt)) >= len(run.ids)
        found.append(Told(run.arm, run.seed, doubt, positive, (*run.clusters, *pair[1].clusters)))
    return found


def compare_auroc(told: Sequence[Told], reference: str, resamples: int = RESAMPLES) -> dict[str, Interval]:
    """Return the difference of each arm to the reference in AUROC (points), over the seeds that both have.

    Arms and seeds of which one kind of row is missing (all answers right, for example) are left out.
    """
    usable = [one for one in told if one.positive.any() and not one.positive.all()]
    place = {(one.arm, one.seed): i for i, one in enumerate(usable)}
    if not usable:
        return {}
    scores, positive, clusters = (
        [o.doubt for o in usable],
        [o.positive for o in usable],
        usable[0].clusters,
    )
    ones = torch.ones(len(clusters), dtype=torch.float64)
    plain = torch.stack([weighted_auroc(s, p, ones) for s, p in zip(scores, positive, strict=True)])
    drawn = drawn_auroc(scores, positive, clusters, resamples)
    found = {}
    for arm in dict.fromkeys(one.arm for one in usable if one.arm != reference):
        if seeds := paired_seeds(place, arm, reference):
            ours, theirs = ([place[name, seed] for seed in seeds] for name in (arm, reference))
            difference = Drawn(
                plain[ours] - plain[theirs], drawn[:, ours] - drawn[:, theirs], Counter(clusters)
            )
            found[arm] = crossed_interval([difference], LEVEL)
    return found

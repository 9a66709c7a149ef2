"""Compare two runs on the same rows, with intervals over rows and seeds."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from bara_pyro.diagnostics import Number, Result
from bara_pyro.diagnostics.paired.evaluated import Evaluated, read_group
from bara_pyro.errors import DataError
from bara_pyro.metrics import holm, paired_bootstrap
from bara_pyro.metrics.base import METRICS, compared, rows_of
from bara_pyro.metrics.intervals import check_level

RESAMPLES, LEVEL = 2000, 0.95


class Side(Result):
    """One of the two sides of a comparison."""

    name: str  # the folder as given
    method: str
    runs: list[str]  # folders of the predictions, in the order of `seeds`
    seeds: list[int]  # training seeds


class PairedDifference(Result):
    """One score of both sides, averaged over the runs of each, in the unit of the score."""

    metric: str  # name in `bara_pyro.metrics.base.METRICS`
    a: Number
    b: Number
    difference: Number  # a - b
    low: Number  # lower end of the paired interval, not corrected for several scores
    high: Number  # upper end
    p: Number  # two-sided p-value of no difference
    p_holm: Number  # p-value corrected for all compared scores (Holm)
    se_rows: Number  # standard error due to clusters of rows
    se_seeds: Number  # standard error due to training seeds; unknown with one run on each side
    df: Number  # degrees of freedom of Student's t
    better: Literal["a", "b", "unclear"]  # decided by `p_holm`


class JointAccuracy(Result):
    """Percentage of rows that both, one or neither side answers correctly, mean over pairs of runs."""

    both: float
    only_a: float
    only_b: float
    neither: float


class PairedComparison(Result):
    """The comparison of two runs, or two groups of runs, on the same rows."""

    a: Side
    b: Side
    task: str
    split: str
    rows: int  # number n of rows
    clusters: int  # number of clusters of rows with correlated errors; n if every row is independent
    samples: int  # number S of posterior draws; 0 is the posterior mean
    level: float  # nominal coverage of the intervals
    resamples: int  # number of bootstrap draws
    metrics: list[PairedDifference]
    agreement: JointAccuracy
    notes: list[str]


def compare_runs(
    a: Path | str,
    b: Path | str,
    *,
    on: str | None = None,
    samples: int | None = None,
    clusters: Mapping[str, str] | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PairedComparison:
    """Compare the predictions of two runs, or two groups of runs, on the same rows.

    Differences are paired by row and, if both sides are groups, by seed. Their intervals cover seeds and
    clusters of rows (`bara_pyro.metrics.paired_bootstrap`). With one run on each side they cover other rows
    for the same trained models.

    Args:
        a: folder of a run, of one of its evaluations, or of several runs that differ only in their seed.
        b: the same for the other side.
        on: name of the evaluation to compare on; by default the rows evaluated after training.
        samples: number S of posterior draws; by default the largest, which must then be equal for all runs.
        clusters: identifier of a row -> its cluster; by default the clusters stored with the predictions. A
            row without a stored cluster is a cluster.
        level: nominal coverage of the intervals.
        resamples: number of bootstrap draws.
        seed: seed of the bootstrap draws.

    Raises:
        CheckpointError: a folder has no evaluated run, or a file is damaged.
        ConfigError: `level` or `resamples` is out of range.
        DataError: the rows or S differ, the groups share no seed, a row has no cluster, or all rows are in
            one cluster.
    """
    check_level(level)
    ours, theirs, notes = _paired(read_group(Path(a), on), read_group(Path(b), on))
    runs = [*ours, *theirs]
    _check_rows(runs)
    drawn = _samples(runs, samples)
    if len({run.fingerprint for run in runs}) > 1:
        notes.append(
            "the rows have different tokens, because the tokenizers or prompts differ or the texts changed "
            "between the evaluations"
        )
    names = _clusters(runs, clusters)
    labels = runs[0].labels
    left, right = (torch.stack([run.log_probs[drawn] for run in side]) for side in (ours, theirs))
    differences = [
        _difference(metric, left, right, labels, names, level=level, resamples=resamples, seed=seed)
        for metric in compared()
    ]
    return PairedComparison(
        a=_side(a, ours),
        b=_side(b, theirs),
        task=runs[0].task,
        split=runs[0].split,
        rows=len(labels),
        clusters=len(set(names)),
        samples=drawn,
        level=level,
        resamples=resamples,
        metrics=_judged(differences, level),
        agreement=_agreement(left, right, labels),
        notes=notes,
    )


def _side(place: Path | str, runs: Sequence[Evaluated]) -> Side:
    return Side(
        name=str(place),
        method=runs[0].method,
        runs=[str(run.folder) for run in runs],
        seeds=[run.seed for run in runs],
    )


def _paired(
    ours: list[Evaluated], theirs: list[Evaluated]
) -> tuple[list[Evaluated], list[Evaluated], list[str]]:
    """Return the runs of both sides paired by seed, and notes on seeds left out; single runs are a pair."""
    if len(ours) == len(theirs) == 1:
        return ours, theirs, []
    a, b = ({run.seed: run for run in side} for side in (ours, theirs))
    shared = sorted(a.keys() & b.keys())
    if not shared:
        raise DataError(
            f"The groups have no seed in common ({', '.join(map(str, sorted(a)))} and "
            f"{', '.join(map(str, sorted(b)))}): train both with the same seeds."
        )
    alone = sorted(a.keys() ^ b.keys())
    notes = [f"seeds that only one side has were left out: {', '.join(map(str, alone))}"] if alone else []
    return [a[seed] for seed in shared], [b[seed] for seed in shared], notes


def _check_rows(runs: Sequence[Evaluated]) -> None:
    """Raise `DataError` unless all runs were evaluated on the same rows with the same classes."""
    first = runs[0]
    for other in runs[1:]:
        if (other.task, other.split) != (first.task, first.split):
            raise DataError(
                f"{first.folder} was evaluated on the {first.split} rows of {first.task!r} and "
                f"{other.folder} on the {other.split} rows of {other.task!r}: use the same rows for both."
            )
        if other.ids != first.ids:
            only = set(first.ids) ^ set(other.ids)
            what = f"{min(only)!r} is not in both" if only else "their order differs"
            raise DataError(
                f"{first.folder} and {other.folder} were not evaluated on the same rows of {first.task!r} "
                f"({what}): evaluate both on the same rows."
            )
        if other.classes != first.classes or not torch.equal(other.labels, first.labels):
            raise DataError(
                f"{first.folder} and {other.folder} have different classes or answers for the rows of "
                f"{first.task!r}: evaluate both on the same data."
            )


def _samples(runs: Sequence[Evaluated], samples: int | None) -> int:
    """Return the number of posterior draws to compare all runs with."""
    for run in runs:
        if samples is not None and samples not in run.log_probs:
            raise DataError(
                f"{run.folder} was evaluated with S = {', '.join(map(str, run.log_probs))} and not "
                f"{samples}: run `bara evaluate RUN --samples {samples}` for each, and compare with --on "
                f"{run.task}-{run.split}."
            )
    if samples is not None:
        return samples
    first = runs[0]
    for other in runs[1:]:
        if max(other.log_probs) != max(first.log_probs):
            raise DataError(
                f"{first.folder} was evaluated with S = {max(first.log_probs)} and {other.folder} with "
                f"S = {max(other.log_probs)}: evaluate both with the same S, or choose one that both have "
                "(--samples)."
            )
    return max(first.log_probs)


def _clusters(runs: Sequence[Evaluated], named: Mapping[str, str] | None) -> list[str]:
    """Return the cluster of each row; a row without one is a cluster."""
    ids = runs[0].ids
    if named is not None:
        if missing := [row_id for row_id in ids if row_id not in named]:
            raise DataError(f"Row {missing[0]!r} has no cluster: give one for each of the {len(ids)} rows.")
        known: Sequence[str] = [named[row_id] for row_id in ids]
    else:
        known = next((run.clusters for run in runs if any(run.clusters)), runs[0].clusters)
    taken = set(known)  # a row may be named like a cluster that it is not in
    singletons = (f"row {row_id}" if row_id in taken else row_id for row_id in ids)
    return [cluster or name for cluster, name in zip(known, singletons, strict=True)]


def _difference(
    metric: str,
    left: Tensor,
    right: Tensor,
    labels: Tensor,
    clusters: Sequence[str],
    *,
    level: float,
    resamples: int,
    seed: int,
) -> PairedDifference:
    """Return one score of both sides (`runs x n x C` each); without an interval if it is infinite."""
    a, b = (
        float(torch.tensor([METRICS[metric].function(run, labels) for run in side]).double().mean())
        for side in (left, right)
    )
    unknown = dict.fromkeys(("low", "high", "p", "p_holm", "se_rows", "se_seeds", "df"), math.nan)
    fields = {"metric": metric, "a": a, "b": b, "difference": a - b, "better": "unclear"}
    if not all(torch.isfinite(rows_of(metric)(run, labels)).all() for run in (*left, *right)):
        return PairedDifference(**fields, **unknown)
    interval = paired_bootstrap(
        metric, left, right, labels, clusters=clusters, resamples=resamples, level=level, seed=seed
    )
    known = {name: getattr(interval, name) for name in ("difference", "low", "high", "se_rows", "df")}
    known |= {"p": interval.p_value, "se_seeds": math.nan if interval.se_seeds is None else interval.se_seeds}
    return PairedDifference(**fields | unknown | known)


def _judged(differences: Sequence[PairedDifference], level: float) -> list[PairedDifference]:
    """Return the differences with Holm-corrected p-values and the verdicts based on them."""
    known = [one for one in differences if not math.isnan(one.p)]
    corrected = dict(zip((one.metric for one in known), holm([one.p for one in known]), strict=True))
    judged = []
    for one in differences:
        p_holm = corrected.get(one.metric, math.nan)
        better = "a" if (one.difference > 0) == (METRICS[one.metric].best == "max") else "b"
        verdict = better if p_holm < 1 - level else "unclear"
        judged.append(one.model_copy(update={"p_holm": p_holm, "better": verdict}))
    return judged


def _agreement(left: Tensor, right: Tensor, labels: Tensor) -> JointAccuracy:
    """Return the percentage of rows that each side answers correctly."""
    a, b = (torch.stack([rows_of("acc")(run, labels)[:, 0] > 0 for run in side]) for side in (left, right))
    shares = {"both": a & b, "only_a": a & ~b, "only_b": ~a & b, "neither": ~a & ~b}
    return JointAccuracy(**{name: 100 * float(hit.double().mean()) for name, hit in shares.items()})

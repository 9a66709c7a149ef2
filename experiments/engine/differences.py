"""Whether an arm is better than a reference, or was lucky with its seeds or its test rows.

What is compared is the difference arm - reference of each score, averaged over seeds: seed 0 of the one
with seed 0 of the other and so on, on the same rows. Intervals are crossed over seeds and clusters of rows,
and clusters are drawn alike in every task that asks about them (`bara_pyro.metrics.intervals`). They speak
of training again and of other residents; the two standard errors beside them say which of the two matters.

A study declares one primary contrast, before it is run, whose verdict is that of its own interval. All
others are secondary: their verdicts rest on p-values after Holm's correction for all of them (a pair of arms
counts once, whichever is the reference), while their intervals are, as usual, each by itself.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bara_pyro.cli.terminal import say
from bara_pyro.errors import DataError
from bara_pyro.metrics import Interval, TaskDifference, crossed_interval, holm
from bara_pyro.metrics.base import compared, rows_of
from bara_pyro.metrics.bootstrap import drawn_scores, plain_scores
from experiments.engine.arguments import command_line
from experiments.engine.results import RESULTS, Results, read_results, results_option, stored_names
from experiments.engine.rows import RunRows, lacking, rows_of_study

AVERAGE = "average"
RESAMPLES, LEVEL = 2000, 0.95
DIGITS = 6  # of what is kept: points and nats far below what any interval resolves
EMPTY = ("difference", "low", "high", "se_seeds", "se_rows", "df", "p", "p_holm", "seed_sd")


@dataclass(frozen=True)
class Contrast:
    """The one comparison that a study is about, on the average over its tasks (or on the one that it has)."""

    arm: str
    reference: str
    metric: str


def compare(
    runs: Iterable[RunRows],
    references: Sequence[str],
    primary: Contrast | None = None,
    *,
    metrics: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Compare every arm with each reference, on each task and on average, under the largest S.

    An arm that lacks a task of the reference has no average. `metrics` names the metrics to compare; None:
    all that can be compared (`bara_pyro.metrics.base.compared`).

    Returns:
        One entry an arm, reference and task: `arm`, `reference`, `task` (`AVERAGE` for the average), `seeds`
        (those compared), `level`, `resamples` and per metric, in its `difference_unit`, `difference`, `low`,
        `high`, the standard errors `se_seeds` (None for one seed) and `se_rows`, `df`, `p`, `p_holm` (None
        for the primary one), `seed_sd` (of the differences by seed) and `verdict`: "better", "worse" or
        "unclear" by `p_holm`, by `p` for the primary one. Where a score is infinite, numbers are None.

    Raises:
        DataError: a reference has no runs, an arm has two runs of a seed on a task, or runs of one task were
            not scored on the same rows or not predicted with the same S.
    """
    by_task: dict[str, list[RunRows]] = {}
    for run in runs:
        by_task.setdefault(run.tested_on, []).append(run)
    names = tuple(compared() if metrics is None else metrics)
    scored = {task: _score(task, found, names, resamples, seed) for task, found in by_task.items()}
    arms = dict.fromkeys(arm for scores in scored.values() for arm, _ in scores.place)
    entries = []
    for reference in references:
        if reference not in arms:
            raise DataError(f"The reference {reference!r} has no runs: choose an arm of the experiment.")
        for arm in (arm for arm in arms if arm != reference):
            known = {task: s for task, s in scored.items() if s.shared_seeds(arm, reference)}
            parts = {task: [scores] for task, scores in known.items()}
            if len(scored) > 1 and len(known) == len(scored):
                parts[AVERAGE] = list(scored.values())
            for task, scores in parts.items():
                about = {
                    "arm": arm,
                    "reference": reference,
                    "task": task,
                    "level": level,
                    "resamples": resamples,
                }
                entries.append(about | _entry(arm, reference, scores, level))
    _judge(entries, primary, level)
    return entries


@dataclass(frozen=True)
class Scores:
    """The scores of all runs on one task.

    Attributes:
        metrics: their names.
        place: arm and seed -> index of the run.
        plain: `runs x metrics`: on the rows themselves.
        drawn: `resamples x runs x metrics`: on drawn clusters, the same for all runs.
        clusters: their names, with the number of rows of each.
        trained_on: the task that the runs learnt.
    """

    metrics: tuple[str, ...]
    place: dict[tuple[str, int], int]
    plain: Tensor
    drawn: Tensor
    clusters: Mapping[str, int]
    trained_on: str

    def shared_seeds(self, arm: str, reference: str) -> list[int]:
        """Return the seeds that both have."""
        return sorted(seed for name, seed in self.place if name == arm and (reference, seed) in self.place)

    def difference(self, arm: str, reference: str) -> list[TaskDifference]:
        """Return arm - reference over the seeds that both have, for each metric."""
        seeds = self.shared_seeds(arm, reference)
        ours, theirs = ([self.place[name, seed] for seed in seeds] for name in (arm, reference))
        plain, drawn = self.plain[ours] - self.plain[theirs], self.drawn[:, ours] - self.drawn[:, theirs]
        return [TaskDifference(plain[:, i], drawn[:, :, i], self.clusters) for i in range(len(self.metrics))]


def _score(task: str, runs: Sequence[RunRows], metrics: tuple[str, ...], resamples: int, seed: int) -> Scores:
    samples = same_rows(task, runs)
    place = {(run.arm, run.seed): i for i, run in enumerate(runs)}
    if len(place) < len(runs):
        raise DataError(
            f"An arm has two runs of one seed on {task}: compare the runs of one training task at a time."
        )
    first = runs[0]
    columns = [rows_of(metric)(run.log_probs[samples], first.labels) for run in runs for metric in metrics]
    infinite = torch.tensor([bool(torch.isinf(column).any()) for column in columns])
    usable = [column.nan_to_num(posinf=0.0) for column in columns]
    shape = (len(runs), len(metrics))
    plain = plain_scores(usable).masked_fill(infinite, math.inf).view(shape)
    drawn = drawn_scores(usable, first.clusters, resamples, seed).masked_fill(infinite, math.inf)
    return Scores(metrics, place, plain, drawn.view(-1, *shape), Counter(first.clusters), first.task)


def same_rows(task: str, runs: Sequence[RunRows]) -> int:
    """Return the largest S that all runs share; a `DataError` where they have not the same rows or S."""
    first = runs[0]
    samples = max(first.log_probs)
    for run in runs[1:]:
        shapes = {found.log_probs[max(found.log_probs)].shape for found in (first, run)}
        if run.ids != first.ids or not torch.equal(run.labels, first.labels) or len(shapes) > 1:
            raise DataError(
                f"{_named(run)} and {_named(first)} were not scored on the same rows of {task}: "
                "evaluate both with the same version and settings of the task."
            )
        if max(run.log_probs) != samples:
            raise DataError(
                f"{_named(run)} was predicted with S = {max(run.log_probs)} and {_named(first)} with "
                f"S = {samples} on {task}: give both the same predict.samples."
            )
    return samples


def _named(run: RunRows) -> str:
    return f"{run.arm} (seed {run.seed})"


def _entry(arm: str, reference: str, tasks: Sequence[Scores], level: float) -> dict[str, Any]:
    """Return all metrics of a difference averaged over tasks; by seed over those that all tasks have."""
    seeds = [task.shared_seeds(arm, reference) for task in tasks]
    shared = sorted(set.intersection(*map(set, seeds)))
    places = [[own.index(seed) for seed in shared] for own in seeds]
    differences = [task.difference(arm, reference) for task in tasks]
    entry: dict[str, Any] = {"seeds": shared}
    for i, metric in enumerate(tasks[0].metrics):
        known = [metrics[i] for metrics in differences]
        if all(bool(one.by_seed.isfinite().all()) for one in known):
            by_seed = torch.stack([one.by_seed[place] for one, place in zip(known, places, strict=True)])
            # Shifted rows are asked of the same trained models as the task's own: these are one training.
            interval = crossed_interval(known, level, trainings=[task.trained_on for task in tasks])
            entry[metric] = _numbers(interval, by_seed.mean(dim=0))
        else:
            mean = float(torch.stack([one.by_seed.mean() for one in known]).mean())
            entry[metric] = dict.fromkeys(EMPTY) | {"verdict": _verdict(metric, mean, not math.isnan(mean))}
    return entry


def _numbers(found: Interval, by_seed: Tensor) -> dict[str, Any]:
    numbers = {key: getattr(found, key) for key in ("difference", "low", "high", "se_seeds", "se_rows", "df")}
    numbers["seed_sd"] = float(by_seed.double().std()) if len(by_seed) > 1 else None
    rounded = {key: None if value is None else round(value, DIGITS) for key, value in numbers.items()}
    return {**rounded, "p": float(f"{found.p_value:.4g}")}


def metrics_of(entry: Mapping[str, Any]) -> list[str]:
    """Return the metrics that an entry compares."""
    return [name for name, found in entry.items() if isinstance(found, Mapping)]


def _judge(entries: Sequence[dict[str, Any]], primary: Contrast | None, level: float) -> None:
    """Add what follows from each difference: by itself for the primary one, corrected for all others."""
    declared = _declared(entries, primary)
    known = [(e, m) for e in entries for m in metrics_of(e) if e[m]["p"] is not None]
    first = None if declared is None else _question(*declared)
    # Of two arms that are each the other's reference there is one question, and one test of it.
    tests = {_question(entry, metric): entry[metric]["p"] for entry, metric in known}
    others = [question for question in tests if question != first]
    corrected = dict(zip(others, holm([tests[question] for question in others]), strict=True))
    for entry, metric in known:
        found, question = entry[metric], _question(entry, metric)
        if question == first:
            decisive = found["p"]
            found |= {"p_holm": None, "primary": True}
        else:
            decisive = corrected[question]
            found["p_holm"] = float(f"{decisive:.4g}")
        found["verdict"] = _verdict(metric, found["difference"], decisive < 1 - level)


def _question(entry: Mapping[str, Any], metric: str) -> tuple[frozenset[str], str, str]:
    """Return what a difference is of, whichever of the two arms is called the reference."""
    return frozenset((entry["arm"], entry["reference"])), entry["task"], metric


def _declared(
    entries: Sequence[dict[str, Any]], primary: Contrast | None
) -> tuple[dict[str, Any], str] | None:
    """Return the entry and metric of the primary contrast, on average if there is one; None without it."""
    if primary is None:
        return None
    found = [e for e in entries if (e["arm"], e["reference"]) == (primary.arm, primary.reference)]
    place = next((e for e in found if e["task"] == AVERAGE), found[0] if len(found) == 1 else None)
    return None if place is None or place[primary.metric]["p"] is None else (place, primary.metric)


def _verdict(metric: str, difference: float, distinct: bool) -> str:
    sign = 1.0 if compared()[metric].best == "max" else -1.0
    return "unclear" if not distinct else "better" if sign * difference > 0 else "worse"


PRIMARY = Contrast("bara", "lora", "nll")


@dataclass(frozen=True)
class Comparisons:
    """How a study compares its arms.

    Attributes:
        primary: the contrast that is declared; all others are secondary. The printed algorithm with LoRA, in
            likelihood, unless a study asks something else.
        references: the arms that all others are compared with, if the study has them: LoRA, and the baseline
            of the lowest validation NLL in the search for settings, which is LoRA with a temperature.
    """

    primary: Contrast = PRIMARY
    references: tuple[str, ...] = ("lora", "temperature")


COMPARISONS = Comparisons()


def compare_study(runs: Sequence[RunRows], comparisons: Comparisons) -> list[dict[str, Any]]:
    """Compare every arm of a study with its references; see `compare`.

    Raises:
        DataError: no reference is among the arms, no rows are of the requested tasks, or runs of one task
            were not scored on the same rows.
    """
    rows = [run for run in runs if run.tested_on == run.task]
    arms = dict.fromkeys(run.arm for run in rows)
    named = dict.fromkeys((*comparisons.references, comparisons.primary.reference))
    references = [name for name in named if name in arms]
    if not references:
        raise DataError(f"None of the arms {', '.join(arms)} is a reference: add one, for example lora.")
    return compare(rows, references, comparisons.primary)


def write_comparisons(study: str, comparisons: Comparisons, results: Path = RESULTS) -> list[dict[str, Any]]:
    """Compute a study's comparisons from its stored rows, write them to its results and return them."""
    found = read_results(study, results)
    found.comparisons = compare_study(rows_of_study(study, results), comparisons)
    found.write()
    return found.comparisons


def compared_again(stored: Results) -> list[dict[str, Any]]:
    """Compute the stored comparisons of a set of results from its stored rows, and return them.

    They say themselves what is compared, and by which metrics, so this needs no code of the study, which may
    be retired, and a metric that was added since changes none of them.
    """
    entries = stored.comparisons
    declared = [(e["arm"], e["reference"], m) for e in entries for m in metrics_of(e) if e[m].get("primary")]
    tasks = {entry["task"] for entry in entries}
    rows = [run for run in rows_of_study(stored.name, stored.folder) if run.tested_on in tasks]
    references = list(dict.fromkeys(entry["reference"] for entry in entries))
    primary = Contrast(*declared[0]) if declared else None
    return compare(rows, references, primary, metrics=metrics_of(entries[0]))


def recompute(results: Path = RESULTS) -> list[str]:
    """Compute the comparisons of all studies again and write what differs; return a line on each study."""
    lines = []
    for stored in (read_results(name, results) for name in stored_names(results)):
        if stored.comparisons and (missing := lacking(stored.name, results)):
            lines.append(f"{stored.name}: not recomputed, the rows of {len(missing)} runs are not stored")
        elif stored.comparisons:
            entries = json.loads(json.dumps(compared_again(stored)))  # as they are stored
            same = entries == stored.comparisons
            lines.append(f"{stored.name}: {len(entries)} comparisons, {'as stored' if same else 'changed'}")
            if not same:
                stored.comparisons = entries
                stored.write()
    return lines


def main() -> None:
    """Compute stored comparisons again from the stored rows, without a run; other intervals are left out."""
    parser = command_line(main.__doc__)
    results_option(parser)
    for line in recompute(parser.parse_args().out):
        say(line)

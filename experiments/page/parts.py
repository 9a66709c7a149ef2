"""What stands on a page: words, tables, figures with words for them; and what studies of arms share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import fill
from typing import Any

from matplotlib.figure import Figure

from bara_pyro.report import Table
from experiments.engine.differences import AVERAGE, METRICS, primary_of
from experiments.engine.methods import in_order
from experiments.engine.results import Arms, Study
from experiments.page.figures import (
    accuracy_ece_figure,
    difference_figure,
    reliability_figure,
    risk_coverage_figure,
)
from experiments.page.tables import (
    SCORES,
    comparison_by_task,
    comparison_table,
    difference,
    score_tables,
    selection,
    shift_tables,
    variants_table,
)
from experiments.page.values import display, draws_of, finished, over_seeds, score


@dataclass(frozen=True)
class Picture:
    """A figure, the name of its file and its caption.

    `numbers` is what those who cannot see it are told besides.
    """

    draw: Callable[[], Figure]
    name: str
    caption: str
    numbers: str = ""


@dataclass(frozen=True)
class Folded:
    """Tables that are shown on a click."""

    title: str
    tables: Sequence[Table]


Part = str | Table | Picture | Folded
"""A string is Markdown."""


def tables_of(part: Part) -> Sequence[Table]:
    """Return the tables of a part, those that are folded, too."""
    return part.tables if isinstance(part, Folded) else [part] if isinstance(part, Table) else []


REFERENCE = "lora"
WIDTH = 110

COMPARED = """Each cell: arm minus reference [{level:g} % interval] (standard error by seeds, by rows) and
what follows from it. Intervals are crossed over seeds and clusters of rows, which on the microworld are the
residents asked about ({resamples:,} draws; `bara_pyro/metrics/intervals.py`): they speak of training again
and of other residents, each by itself. "Better" and "worse" hold after Holm's correction for all comparisons
of this study but the primary one; "unclear" is what is left, which does not say that the two are
equal.{primary}
"""
DECLARED = " **Primary contrast: {metric} of {arm} minus {reference}, {task}: {cell}, p = {p:.2g}.**"
UNSTORED = """Each cell: arm minus reference [{level:g} % interval] and what follows from it; "unclear"
means that the interval covers zero. **The rows of this study are not stored until its next run**, so that its
intervals cannot be computed again. They come from a bootstrap over test rows alone ({resamples:,} draws): too
narrow where rows of one resident err together, silent on training again, not corrected for their number.
"""


def main_table(study: Study) -> list[Part]:
    """Return tables of all metrics, reliability, risk-coverage, accuracy against ECE, and comparisons."""
    task = study.tasks[0]
    whole = any(
        set(study.tasks) <= {t for t in tasks if finished({t: tasks[t]})} for tasks in study.arms.values()
    )
    pictures = [
        Picture(
            lambda: accuracy_ece_figure(study),
            f"{study.name}-accuracy-ece",
            "Accuracy and calibration error, mean over tasks, largest S; bars: one standard deviation over "
            "seeds. Best is at the lower right.",
        ),
        Picture(
            lambda: reliability_figure(study, task),
            f"{study.name}-reliability",
            f"Reliability on {task}, largest S, seeds pooled.",
            f"ECE (%): {_in_words(study, task, 'ece')}.",
        ),
        Picture(
            lambda: risk_coverage_figure(study, task),
            f"{study.name}-risk-coverage",
            f"Risk against coverage on {task}, largest S, mean over seeds.",
            f"Area under the curve (%): {_in_words(study, task, 'aurc')}.",
        ),
    ]
    # The first one is of arms that have finished on all tasks.
    return [*score_tables(study), *pictures[not whole :], *comparisons(study)]


def shifts(study: Study) -> list[Part]:
    """Return the tables of a study on shifted tasks, and comparisons there."""
    return [*shifted_scores(study), *comparisons(study)]


def shifted_scores(study: Study) -> list[Part]:
    """Return the scores on shifted tasks."""
    notes = [
        f"{name} has {other} classes, the task trained on {own}: entropies differ for that, too.\n"
        for name, own, other in _class_changes(study)
    ]
    return [*shift_tables(study), *notes]


def _class_changes(study: Study) -> list[tuple[str, int, int]]:
    """Return the shifted tasks with another number of classes than the task trained on."""
    found = {
        (name, record["classes"], scores["classes"])
        for record in study.finished
        for name, scores in record["shifted"].items()
        if scores.get("classes", record["classes"]) != record["classes"]
    }
    return sorted(found)


def variants(study: Study) -> list[Part]:
    """Return one table of all arms over all tasks, then one a task, folded."""
    return [*_variant_tables(study), *comparisons(study)]


def by_method(study: Study) -> list[Part]:
    """Return the tables of `variants` for each method by itself: a row a variant."""
    return [*_grouped(study, by_variant=False), *comparisons(study)]


def by_variant(study: Study) -> list[Part]:
    """Return the tables of `variants` for each variant by itself: a row a method."""
    return [*_grouped(study, by_variant=True), *comparisons(study)]


def _grouped(study: Study, by_variant: bool) -> list[Part]:
    if not all(", " in arm for arm in study.arms):
        return _variant_tables(study)
    groups: dict[str, Arms] = {}
    for arm, tasks in study.arms.items():
        method, _, variant = arm.partition(", ")
        group, row = (variant, method) if by_variant else (method, variant)
        groups.setdefault(group, {})[row] = tasks
    parts: list[Part] = []
    for group in in_order(groups):
        parts += [f"### {display(group)}\n", *_variant_tables(replace(study, arms=groups[group]))]
    return parts


def _variant_tables(study: Study) -> list[Part]:
    parts: list[Part] = [variants_table(study)]
    if words := selection(study):
        parts.append(f"{words}\n")
    if len(study.tasks) > 1:
        parts.append(Folded("Task by task", [variants_table(study, [task]) for task in study.tasks]))
    return parts


def comparisons(study: Study) -> list[Part]:
    """Return the comparisons with each reference, and a figure of those with LoRA; nothing without any."""
    entries = study.comparisons
    if not entries:
        return []
    parts: list[Part] = ["### Differences\n", _about(entries)]
    for reference in dict.fromkeys(e["reference"] for e in entries):
        tasks = list(dict.fromkeys(e["task"] for e in entries if e["reference"] == reference))
        parts.append(comparison_table(entries, reference, AVERAGE if AVERAGE in tasks else tasks[0]))
        if len(tasks) > 1:
            each = [comparison_by_task(entries, reference, metric) for metric in METRICS]
            parts.append(Folded(f"Difference to {display(reference)} task by task", each))
    if any(e["reference"] == REFERENCE for e in entries):
        caption = f"NLL of each arm minus that of {display(REFERENCE)}; the numbers are in the tables."
        parts.append(
            Picture(lambda: difference_figure(entries, REFERENCE), f"{study.name}-nll-differences", caption)
        )
    return parts


def _about(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return what the cells of comparisons mean, and the primary contrast."""
    about = {"level": 100 * entries[0]["level"], "resamples": entries[0]["resamples"]}
    if "se_rows" not in entries[0][METRICS[0]]:  # from before rows were stored
        return UNSTORED.format(**about)
    primary = ""
    if declared := primary_of(entries):
        entry, metric = declared
        primary = DECLARED.format(
            metric=SCORES[metric].heading,
            arm=display(entry["arm"]),
            reference=display(entry["reference"]),
            task="average over the tasks" if entry["task"] == AVERAGE else entry["task"],
            cell=difference(entry, metric),
            p=entry[metric]["p"],
        )
    return fill(COMPARED.format(**about, primary=primary), WIDTH) + "\n"


def _in_words(study: Study, task: str, metric: str) -> str:
    """Return a score of each arm on a task under the largest S, for those who cannot see the figure."""
    words = []
    for arm in in_order(study.arms):
        seeds = study.arms[arm].get(task, {})
        value = over_seeds(seeds, score((draws_of({task: seeds}) or [""])[-1], metric))
        number = value[0] if isinstance(value, tuple) else value
        if isinstance(number, float):
            words.append(f"{display(arm)} {number:.1f}")
    return ", ".join(words)

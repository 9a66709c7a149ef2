"""What stands on a page: words, tables, figures with words for them; and what studies of arms share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from bara_pyro.report import Table
from experiments.engine.differences import AVERAGE, METRICS
from experiments.engine.study import Arms, Study
from experiments.page.figures import (
    accuracy_ece_figure,
    difference_figure,
    reliability_figure,
    risk_coverage_figure,
)
from experiments.page.tables import (
    comparison_by_task,
    comparison_table,
    score_tables,
    selection,
    shift_tables,
    variants_table,
)
from experiments.page.values import display, draws_of, ordered, over_seeds, score


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        draw: makes it.
        name: of its file, without the ending.
        caption: is also the alternative text.
        numbers: what those who cannot see it are told besides.
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

REFERENCE = "lora"

COMPARED = """Each cell: arm minus reference ± standard deviation over seeds [{level:g} % interval] and what
follows from it; "equal" means that the interval covers zero. Intervals come from a paired bootstrap over test
rows ({resamples:,} resamples, the same rows for all arms and seeds; `experiments/engine/differences.py`):
they speak of other rows, the ± of other seeds. Of a hundred intervals of arms that do not differ about five
leave zero out.
"""


def main_table(study: Study) -> list[Part]:
    """Return tables of all metrics, reliability, risk-coverage, accuracy against ECE, and comparisons."""
    task = study.tasks[0]
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
    return [*score_tables(study), *pictures, *comparisons(study)]


def shifts(study: Study) -> list[Part]:
    """Return the tables of a study on shifted tasks."""
    notes = [
        f"{name} has {other} classes, the task trained on {own}: entropies differ for that, too.\n"
        for name, own, other in _class_changes(study)
    ]
    return [*shift_tables(study), *notes, *comparisons(study)]


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
    for group in ordered(groups):
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
    about = {"level": 100 * entries[0]["level"], "resamples": entries[0]["resamples"]}
    parts: list[Part] = ["### Differences\n", COMPARED.format(**about)]
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


def _in_words(study: Study, task: str, metric: str) -> str:
    """Return a score of each arm on a task under the largest S, for those who cannot see the figure."""
    words = []
    for arm in ordered(study.arms):
        seeds = study.arms[arm].get(task, {})
        value = over_seeds(seeds, score((draws_of({task: seeds}) or [""])[-1], metric))
        number = value[0] if isinstance(value, tuple) else value
        if isinstance(number, float):
            words.append(f"{display(arm)} {number:.1f}")
    return ", ".join(words)

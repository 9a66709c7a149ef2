"""What stands in a section of docs/results.md: tables, figures with words for them, comparisons."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bara_pyro.report import Table, markdown
from experiments.engine.differences import AVERAGE, METRICS
from experiments.engine.study import Arms, Study
from experiments.page.figures import (
    accuracy_ece_figure,
    difference_figure,
    reliability_figure,
    risk_coverage_figure,
    save,
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

Lines = list[str]
REFERENCE = "lora"

COMPARED = """Each cell: arm minus reference ± standard deviation over seeds [{level:g} % interval] and what
follows from it; "equal" means that the interval covers zero. Intervals come from a paired bootstrap over test
rows ({resamples:,} resamples, the same rows for all arms and seeds; `experiments/differences.py`): they speak
of other rows, the ± of other seeds. Of a hundred intervals of arms that do not differ about five leave zero
out.
"""


def main_table(study: Study, figures: Path) -> Lines:
    """Return tables of all metrics, reliability, risk-coverage, accuracy against ECE, and comparisons."""
    task = study.tasks[0]
    tables = [markdown(table) for table in score_tables(study)]
    start = str(figures / study.name)
    pictures = [
        picture(
            accuracy_ece_figure(study),
            Path(f"{start}-accuracy-ece.png"),
            "Accuracy and calibration error, mean over tasks, largest S; bars: one standard deviation over "
            "seeds. Best is at the lower right.",
        ),
        picture(
            reliability_figure(study, task),
            Path(f"{start}-reliability.png"),
            f"Reliability on {task}, largest S, seeds pooled.",
            f"ECE (%): {_in_words(study, task, 'ece')}.",
        ),
        picture(
            risk_coverage_figure(study, task),
            Path(f"{start}-risk-coverage.png"),
            f"Risk against coverage on {task}, largest S, mean over seeds.",
            f"Area under the curve (%): {_in_words(study, task, 'aurc')}.",
        ),
    ]
    return [*tables, *pictures, *comparisons(study, figures)]


def shifts(study: Study, figures: Path) -> Lines:
    """Return the tables of an experiment on shifted tasks."""
    notes = []
    for name, own, other in _class_changes(study):
        notes.append(
            f"{name} has {other} classes, the task trained on {own}: entropies differ for that, too.\n"
        )
    return [*(markdown(table) for table in shift_tables(study)), *notes, *comparisons(study, figures)]


def _class_changes(study: Study) -> list[tuple[str, int, int]]:
    """Return the shifted tasks with another number of classes than the task trained on."""
    found = {
        (name, record["classes"], scores["classes"])
        for record in study.finished
        for name, scores in record["shifted"].items()
        if scores.get("classes", record["classes"]) != record["classes"]
    }
    return sorted(found)


def variants(study: Study, figures: Path) -> Lines:
    """Return one table of all arms over all tasks, then one a task, folded."""
    return [*_variant_tables(study), *comparisons(study, figures)]


def by_method(study: Study, figures: Path) -> Lines:
    """Return the tables of `variants` for each method by itself: a row a variant."""
    return [*_grouped(study, by_variant=False), *comparisons(study, figures)]


def by_variant(study: Study, figures: Path) -> Lines:
    """Return the tables of `variants` for each variant by itself: a row a method."""
    return [*_grouped(study, by_variant=True), *comparisons(study, figures)]


def _grouped(study: Study, by_variant: bool) -> Lines:
    if not all(", " in arm for arm in study.arms):
        return _variant_tables(study)
    groups: dict[str, Arms] = {}
    for arm, tasks in study.arms.items():
        method, _, variant = arm.partition(", ")
        group, row = (variant, method) if by_variant else (method, variant)
        groups.setdefault(group, {})[row] = tasks
    lines = []
    for group in ordered(groups):
        lines += [f"### {display(group)}\n", *_variant_tables(replace(study, arms=groups[group]))]
    return lines


def _variant_tables(study: Study) -> Lines:
    lines = [markdown(variants_table(study)), *([f"{words}\n"] if (words := selection(study)) else [])]
    if len(study.tasks) > 1:
        lines += folded("Task by task", [variants_table(study, [task]) for task in study.tasks])
    return lines


def comparisons(study: Study, figures: Path) -> Lines:
    """Return the comparisons with each reference, and a figure of those with LoRA; nothing without any."""
    entries = study.comparisons
    if not entries:
        return []
    about = {"level": 100 * entries[0]["level"], "resamples": entries[0]["resamples"]}
    lines = ["### Differences\n", COMPARED.format(**about)]
    for reference in dict.fromkeys(e["reference"] for e in entries):
        tasks = list(dict.fromkeys(e["task"] for e in entries if e["reference"] == reference))
        lines.append(
            markdown(comparison_table(entries, reference, AVERAGE if AVERAGE in tasks else tasks[0]))
        )
        if len(tasks) > 1:
            each = [comparison_by_task(entries, reference, metric) for metric in METRICS]
            lines += folded(f"Difference to {display(reference)} task by task", each)
    if any(e["reference"] == REFERENCE for e in entries):
        path = figures / f"{study.name}-nll-differences.png"
        caption = f"NLL of each arm minus that of {display(REFERENCE)}; the numbers are in the tables."
        lines.append(picture(difference_figure(entries, REFERENCE), path, caption))
    return lines


# Parts -----------------------------------------------------------------------------------------------------


def picture(figure: Figure, path: Path, caption: str, numbers: str = "") -> str:
    """Save a figure and return the Markdown that shows it; the page is in the folder above it.

    The caption is also the alternative text, with the numbers for those who cannot see them.
    """
    save(figure, path)
    return f"![{f'{caption} {numbers}'.strip()}]({path.parent.name}/{path.name})\n\n*{caption}*\n"


def opening(introduction: str, entries: Iterable[Mapping[str, Any]], answer: str, **about: Any) -> Lines:
    """Return a section's introduction, with `seeds` in words, and what was learnt if anything was."""
    seeds = len({entry["seed"] for entry in entries})
    return [introduction.format(**about, seeds=f"{seeds} seed{'s' if seeds > 1 else ''}"), *learnt(answer)]


def learnt(answer: str) -> Lines:
    """Return what was learnt from an experiment; nothing where nothing has been written."""
    return [f"{answer.strip()}\n"] if answer.strip() else []


def folded(title: str, tables: Iterable[Table]) -> Lines:
    """Return tables that are shown on a click."""
    return [f"<details><summary>{title}</summary>\n", *(markdown(table) for table in tables), "</details>\n"]


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

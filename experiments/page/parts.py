"""What stands on a page: words, tables and a figure; and what studies of arms share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from bara_pyro.report import Table
from experiments.engine.results import Study
from experiments.page.figures import difference_figure, score_figure
from experiments.page.tables import arms_table, reference_of, shift_tables, task_table
from experiments.page.values import display, finished


@dataclass(frozen=True)
class Picture:
    """A figure, the name of its file and its caption."""

    draw: Callable[[], Figure]
    name: str
    caption: str


@dataclass(frozen=True)
class Folded:
    """Tables that are shown on a click."""

    title: str
    tables: Sequence[Table]


Part = str | Table | Picture | Folded
"""A string is Markdown."""


def tables_of(part: Part) -> Sequence[Table]:
    """Return the tables of a part, including those that are folded."""
    return part.tables if isinstance(part, Folded) else [part] if isinstance(part, Table) else []


def main_table(study: Study) -> list[Part]:
    """Return the figure of differences to LoRA, a table of all arms, and the scores by task."""
    by_task = [task_table(study, metric) for metric in ("acc", "ece", "nll")]
    folded = [Folded("Scores by task", by_task)] if len(study.tasks) > 1 else []
    return [*_figure(study), arms_table(study), *folded]


def shifts(study: Study) -> list[Part]:
    """Return the figure of differences to LoRA on shifted tasks, and tables of scores and detection."""
    return [*_figure(study), *shift_tables(study)]


def _figure(study: Study) -> list[Part]:
    """Return the figure of a study: differences to the reference if there are any, scores otherwise."""
    if study.comparisons:
        reference = reference_of(study.comparisons)
        caption = (
            f"NLL of each method minus that of {display(reference)}, with its 95 % interval; left is better."
        )
        name = f"{study.name}-nll-differences"
        return [Picture(lambda: difference_figure(study.comparisons, reference), name, caption)]
    whole = ({task for task in tasks if finished({task: tasks[task]})} for tasks in study.arms.values())
    if not any(done >= {*study.tasks} for done in whole):
        return []
    caption = "NLL of each variant, mean over tasks; left is better. Bars: one standard deviation over seeds."
    return [Picture(lambda: score_figure(study), f"{study.name}-nll", caption)]

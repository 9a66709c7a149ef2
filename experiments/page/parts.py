"""What stands on a page: words, tables and a figure; and what studies of arms share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from bara_pyro.report import Table
from experiments.engine.figures import difference_figure
from experiments.engine.results import Study
from experiments.engine.tables import arms_table, reference_of, task_table
from experiments.engine.values import display


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
    """Return the figure of differences, if there are any, a table of all arms, and the scores by task."""
    parts: list[Part] = [arms_table(study)]
    if study.comparisons:
        reference = reference_of(study.comparisons)
        caption = (
            f"NLL of each method minus that of {display(reference)}, with its 95 % interval; left is better."
        )
        draw = partial(difference_figure, study.comparisons, reference)
        parts = [Picture(draw, f"{study.name}-nll-differences", caption), *parts]
    if len(study.tasks) > 1:
        by_task = [task_table(study, metric) for metric in ("acc", "ece", "nll")]
        parts.append(Folded("Scores by task", by_task))
    return parts

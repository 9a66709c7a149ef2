"""What a study is, for the command line and for the pages: one object in the `study.py` of its folder.

    studies/<name>/study.py     STUDY, a `StudySpec`: what is compared, the loop, the table
    studies/<name>/answer.md    what was learnt, a template (`experiments.page.template`); without one there
                                is no page

A folder is all that a study needs: commands and pages are found by what is there.
"""

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from bara_pyro.cli.terminal import show
from experiments.engine.arguments import experiment_parser, preset
from experiments.engine.differences import COMPARISONS, Comparisons
from experiments.engine.methods import chosen
from experiments.engine.results import Study, load_study, results_path, study_names
from experiments.engine.run import Arms, run_study
from experiments.page.parts import Part, tables_of


@dataclass(frozen=True)
class StudySpec:
    """A study.

    Attributes:
        title: the question that its page answers.
        setup: what was trained and measured, and how to read the tables, in Markdown; `{name}` is taken from
            `facts`.
        main: its command, which reads the command line.
        parts: its tables and figures, from its results.
        facts: what `setup` names; what all its entries share, if it compares no arms.
    """

    title: str
    setup: str
    main: Callable[[], None]
    parts: Callable[[Any], Iterable[Part]]
    facts: Callable[[Any], Mapping[str, Any]] = attrgetter("about")


def tuned(args: Namespace) -> Arms:
    """Return arms: each method with the settings that were chosen for it."""
    return {method: {"method": method, **preset(chosen(method))} for method in args.methods}


def arm_study(
    name: str,
    about: str | None,
    title: str,
    setup: str,
    parts: Callable[[Study], Iterable[Part]],
    arms: Callable[[Namespace], Arms] = tuned,
    *,
    methods: Sequence[str] | None = None,
    tasks: Sequence[str] = ("micro-wgs", "micro-arcc"),
    steps: int | None = 1000,
    comparisons: Comparisons = COMPARISONS,
) -> StudySpec:
    """Return a study of arms on tasks with seeds, whose scores are in records.

    Args:
        name: of the study and of its results.
        about: what its command says of itself: the `__doc__` of its module.
        title: as `parts` one of `StudySpec`.
        setup: as in `StudySpec`; what all runs share is added to it.
        parts: its tables and figures.
        arms: arguments -> arms (see `run_study`); each method with its chosen settings by default.
        methods: default of its --methods, as `tasks` and `steps` are of theirs.
        tasks: default of its --tasks.
        steps: default of its --steps.
        comparisons: how its arms are compared, if a reference is among them.
    """

    def main() -> None:
        args = experiment_parser(about, methods=methods, tasks=tasks, steps=steps).parse_args()
        run_study(name, arms(args), args, comparisons)
        for table in (table for part in parts(load_study(name, args.out)) for table in tables_of(part)):
            show(table)

    setup = f"{setup} {{facts}}"
    return StudySpec(title, setup, main, parts, run_facts)


def run_facts(study: Study) -> dict[str, str]:
    """Return a sentence on what all runs share, from their records."""
    records = study.finished
    if not records:
        return {"facts": "No run finished."}
    seeds = sorted({seed for tasks in study.arms.values() for found in tasks.values() for seed in found})
    samples = sorted({int(s) for record in records for s in record["metrics"]})
    models = dict.fromkeys(record["config"]["backbone"]["name"] for record in records)
    # A rehearsal may have asked for more than was configured.
    steps = sorted(
        {int(record.get("fitted", {}).get("calibrated_steps", record["steps"])) for record in records}
    )
    # Arms may share a run.
    unique = {record["config_hash"]: record for record in records}.values()
    seconds = sum((r["wall_clock_train_s"] or 0) + (r["wall_clock_evaluate_s"] or 0) for r in unique)
    parts = [
        f"Language model: {', '.join(models)}",
        f"tasks: {', '.join(study.tasks)}",
        f"{' to '.join(f'{n:,}' for n in dict.fromkeys((steps[0], steps[-1])))} training steps",
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}",
        f"S = {' and '.join(map(str, samples))}",
        f"{seconds / 3600:.2g} core-hours",
    ]
    return {"facts": f"{'; '.join(parts)}."}


def find_study(name: str) -> StudySpec:
    """Return the study of a folder's name."""
    spec: StudySpec = import_module(f"experiments.studies.{name}.study").STUDY
    return spec


def stored_studies(results: Path) -> dict[str, StudySpec]:
    """Return the studies whose results there are, by name."""
    return {name: find_study(name) for name in study_names() if results_path(name, results).exists()}

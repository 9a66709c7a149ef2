"""The sections of docs/results.md, one an experiment: what was asked, and how it is shown."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill

from experiments.engine.study import Study
from experiments.page.bodies import Lines, by_method, by_variant, learnt, main_table, shifts, variants
from experiments.page.values import gaps

WIDTH = 110


@dataclass(frozen=True)
class Section:
    """How an experiment is shown.

    Attributes:
        title: the heading.
        introduction: what was asked.
        body: makes the tables and figures; is given the study and the folder for figures.
    """

    title: str
    introduction: str
    body: Callable[[Study, Path], Lines]


def section(study: Study, figures: Path, answer: str = "") -> Lines:
    """Return the lines of an experiment's section and draw its figures.

    Args:
        study: the experiment; the section is that of its name, or of the longest known beginning of it.
        figures: folder for the figures, beside the page.
        answer: what was learnt, in Markdown, written by hand.
    """
    found = find_section(study.name)
    text = [fill(f"{found.introduction} {facts(study)}".strip(), WIDTH) + "\n"]
    missing = [fill(f"Incomplete: {'. '.join(gaps(study))}.", WIDTH) + "\n"] if gaps(study) else []
    body = found.body(study, figures) if study.finished else []
    return [f"## {found.title}\n", *text, *learnt(answer), *missing, *body]


def find_section(name: str) -> Section:
    """Return how an experiment is shown; a table of variants where nothing is known of it."""
    known = [key for key in SECTIONS if name == key or name.startswith(f"{key}_")]
    title = name.replace("_", " ").capitalize()
    if not known:
        return Section(title, "", variants)
    found = SECTIONS[max(known, key=len)]
    return found if name in SECTIONS else replace(found, title=title)


def place_of(name: str) -> tuple[int, str]:
    """Return what experiments are sorted by: the order of `SECTIONS`, unknown ones last."""
    known = [i for i, key in enumerate(SECTIONS) if name == key or name.startswith(f"{key}_")]
    return (max(known) if known else len(SECTIONS), name)


def facts(study: Study) -> str:
    """Return a sentence on what all runs share, from their records."""
    records = study.finished
    if not records:
        return "No run finished."
    seeds = sorted({seed for tasks in study.arms.values() for found in tasks.values() for seed in found})
    samples = sorted({int(s) for record in records for s in record["metrics"]})
    models = dict.fromkeys(record["config"]["backbone"]["name"] for record in records)
    steps = sorted({record["steps"] for record in records})
    parts = [
        f"Language model: {', '.join(models)}",
        f"tasks: {', '.join(study.tasks)}",
        f"{' to '.join(f'{n:,}' for n in dict.fromkeys((steps[0], steps[-1])))} training steps",
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}",
        f"S = {' and '.join(map(str, samples))}",
    ]
    if study.settings.get("core_hours"):
        parts.append(f"{study.settings['core_hours']:g} core-hours")
    return f"{'; '.join(parts)}."


SECTIONS: dict[str, Section] = {
    "in_distribution": Section(
        "Main table: methods by tasks",
        "Every method with the settings that validation rows chose for it (the same number of trials each, "
        "`experiments/search.py`), on test rows.",
        main_table,
    ),
    "out_of_distribution": Section(
        "Shifts",
        "Trained on one task, tested there and on shifted ones.",
        shifts,
    ),
    "untuned": Section(
        "Long training at one rate",
        "Every method with default settings and the same learning rate: no validation rows were looked at.",
        main_table,
    ),
    "parameter_budget": Section(
        "Parameter budget", "Baselines of twice the rank against BaRA of rank 8.", variants
    ),
    "backbones": Section(
        "Backbones", "The same settings on other language models; nothing was tuned again.", by_variant
    ),
    "hierarchy": Section(
        "Hierarchy of the gates", "BaRA with global gates Φ, local gates θ, or both.", by_method
    ),
    "prior_sensitivity": Section(
        "Prior sensitivity", "BaRA under the five Gamma(shape, rate) priors of the paper.", by_method
    ),
    "guides_and_gates": Section(
        "Posterior families, gates and noise levels",
        "Variants of BaRA's guide, one setting changed each.",
        by_method,
    ),
    "remedies": Section(
        "Remedies",
        "What would bring BaRA ahead where it is not: one thing changed each, of the settings that the "
        "search chose; scores on validation rows.",
        by_method,
    ),
    "reproductions": Section(
        "Published objectives",
        "Methods as published (`recipe: reproduction`) beside the valid objectives of all other tables.",
        by_method,
    ),
}

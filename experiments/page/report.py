"""Write docs/results.md and its figures from the committed result files.

    python -m experiments report

Nothing is typed by hand but the words: introductions in `sections.py` beside this file, and what was learnt
in answer.md in the folder of a study. Experiments that have not been run are left out.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bara_pyro.report import Table, markdown
from bara_pyro.runs.store import read_json, write_text
from experiments.engine.arguments import start
from experiments.engine.runner import RESULTS
from experiments.engine.study import load_study, study_names
from experiments.page.bodies import learnt
from experiments.page.earlier import earlier_sections
from experiments.page.sections import place_of, section
from experiments.studies.leave_one_out import section as leave_one_out_section
from experiments.studies.pac_bayes import section as pac_bayes_section
from experiments.studies.pruning import section as pruning_section
from experiments.studies.reference_posterior import section as reference_section
from experiments.studies.sbc import section as sbc_section
from experiments.studies.sparsity import section as sparsity_section
from experiments.studies.uncertainty import section as uncertainty_section

DOCS = Path(__file__).parents[2] / "docs"
STUDIES = Path(__file__).parents[1] / "studies"

INTRODUCTION = """# Results

Written by `python -m experiments.report` from the files in `experiments/results/`, which hold every score
with its configuration hash, versions and hardware. Accuracy and ECE (15 bins) in percent, NLL in nats, Brier
from 0 to 2. S = 0 is the posterior mean, S = 10 the average over ten draws. Mean ± standard deviation over
seeds; **best** and _second best_ of each column by the mean, ties included. Where there is one seed, say
nothing about differences of a few points: on 1,000 rows the standard error of an accuracy is 1.5 points.
"""

COST = """## Cost

Ratios to LoRA's training step, memory above the frozen model, and prediction with S = 0; S = 10 to the same
one forward. Medians of {rounds} calls on random weights, each method timed in turn with LoRA (LoRA with
itself, which shows the noise); a quarter of the calls for S = 10 (`experiments/efficiency.py`).
"""


def write_report(results: Path = RESULTS, docs: Path = DOCS, studies: Path = STUDIES) -> Path:
    """Write the page and its figures.

    Args:
        results: folder of the experiments' files and of their records.
        docs: folder of the page and of `figures/`.
        studies: folder of the studies, for what was learnt.

    Returns:
        The path of the page.

    Raises:
        DataError: an experiment's file is not one, or one of its records is missing.
    """
    lines = [INTRODUCTION]
    for name in sorted(study_names(results), key=place_of):
        lines += section(load_study(name, results), docs / "figures", _answer(studies, name))
    for name, write in FURTHER.items():
        if (results / f"{name}.json").exists():
            stored = read_json(results / f"{name}.json")
            lines += write(stored, docs / "figures", _answer(studies, name))
    page = docs / "results.md"
    write_text(page, "\n".join([*lines, *earlier_sections(results)]))
    return page


def _answer(studies: Path, name: str) -> str:
    path = studies / name / "answer.md"
    return path.read_text() if path.exists() else ""


def cost(stored: dict[str, Any], figures: Path, answer: str = "") -> list[str]:
    """Return the lines of the section on what methods cost: a table a size and device; it has no figures."""
    # Imported here: it brings the benchmarks along, which no other section needs.
    from experiments.studies.efficiency.study import COLUMNS, ratios

    rounds = sorted({found["rounds"] for found in stored.values()})
    lines = [COST.format(rounds=" to ".join(map(str, rounds))), *learnt(answer)]
    for found in stored.values():
        place = found["environment"]["gpu"] or found["environment"]["machine"]
        caption = f"{found['size']}, {found['dtype']}, {found['device']} ({place})"
        lines.append(markdown(Table(COLUMNS, ratios(found["methods"]), caption)))
    return lines


# Experiments whose files are no studies (`experiments.engine.study`).
FURTHER: dict[str, Callable[[dict[str, Any], Path, str], list[str]]] = {
    "sparsity": sparsity_section.section,
    "pruning": pruning_section.section,
    "uncertainty": uncertainty_section.section,
    "reference_posterior": reference_section.section,
    "sbc": sbc_section.section,
    "leave_one_out": leave_one_out_section.section,
    "pac_bayes": pac_bayes_section.section,
    "efficiency": cost,
}


def main() -> None:
    """Write the page."""
    print(f"Written: {write_report()}")


if __name__ == "__main__":
    start(main)

"""Intervals on a page: which there are, what they mean, and that they can be computed again."""

import re
from pathlib import Path

from study_cases import invent, rows_of

from experiments.engine.differences import METRICS, Comparisons, write_comparisons
from experiments.engine.results import load_study, read_results
from experiments.engine.rows import write_rows
from experiments.page.intervals import recompute
from experiments.page.parts import comparisons

SIZES = {"micro-wgs": 60, "micro-arce": 50}


def with_rows(results: Path) -> None:
    invent("in_distribution", results, tasks=SIZES, seeds=2)
    rows = rows_of({task: (count, 2) for task, count in SIZES.items()})
    write_rows("in_distribution", rows, results)


def words(results: Path) -> str:
    return " ".join(str(part) for part in comparisons(load_study("in_distribution", results)))


def test_a_page_says_what_its_intervals_are(tmp_path: Path) -> None:
    with_rows(tmp_path)
    write_comparisons("in_distribution", Comparisons(), tmp_path)
    said = " ".join(words(tmp_path).split())
    assert re.search(r"Primary contrast: NLL of BaRA minus MLE \(LoRA\), average over the tasks: [+−]", said)
    assert "not stored" not in said


def test_a_page_says_that_rows_are_missing(tmp_path: Path) -> None:
    with_rows(tmp_path)
    write_comparisons("in_distribution", Comparisons(), tmp_path)
    stored = read_results("in_distribution", tmp_path)
    for entry in stored.comparisons:  # as they were before rows were stored
        for metric in METRICS:
            entry[metric] = {key: entry[metric][key] for key in ("difference", "low", "high", "verdict")}
    stored.write()
    said = words(tmp_path)
    assert "not stored until its next run" in said
    assert "Primary" not in said


def test_intervals_are_computed_again_where_all_rows_are(tmp_path: Path) -> None:
    invent("in_distribution", tmp_path, tasks=SIZES, seeds=2)
    (line,) = recompute(tmp_path)
    assert line == "in_distribution: not recomputed, the rows of 12 runs are not stored until its next run"
    with_rows(tmp_path)
    (line,) = recompute(tmp_path)
    assert re.match(
        r"in_distribution: \d+ comparisons; primary: nll of bara minus lora, average: [+-]0\.", line
    )
    found = read_results("in_distribution", tmp_path).comparisons
    assert recompute(tmp_path) == [line]
    assert read_results("in_distribution", tmp_path).comparisons == found

"""Results in a folder of somebody's own: tables of what is there, whatever the committed results hold."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_cases import lines_of

from bara_pyro.errors import DataError
from experiments.engine.results import RESULTS, Results, Study, load_results
from experiments.engine.values import display
from experiments.page.parts import Picture
from experiments.page.report import main as report
from experiments.page.report import own_pages, page
from experiments.page.spec import find_study, stored_studies

WHOLE = ("demo",)  # written whole by one command


def first(stored: Any) -> Any:
    """Return the first arm or entry of what is stored, of one task and seed."""
    if not isinstance(stored, Study):
        return Results(stored.name, stored.folder, stored.about, dict([next(iter(stored.entries.items()))]))
    arm, tasks = next(iter(stored.arms.items()))
    task, seeds = next(iter(tasks.items()))
    arms = {arm: {task: dict([next(iter(seeds.items()))])}}
    return replace(stored, arms=arms, comparisons=[])


@pytest.mark.parametrize("study", sorted(stored_studies(RESULTS).keys() - {*WHOLE}))
def test_a_page_is_of_what_is_there(study: str) -> None:
    spec = find_study(study)
    found = first(load_results(study, RESULTS))
    assert "|" in page(study, spec, found, "", None)  # a table
    for part in spec.parts(found):
        if isinstance(part, Picture):
            part.draw()


def test_a_study_of_fewer_methods_gets_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command to the pages, with 1 seed and two methods, and no word on what is not there."""
    out = tmp_path / "results"
    words = ["--seeds", "1", "--methods", "lora", "mc_dropout", "--tasks", "micro-wgs", "--steps", "1"]
    more = ["--set", "task.limit=8", "--set", "predict.samples=[0]", "--launcher", "serial"]
    place = ["--out", str(out), "--runs", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", ["in_distribution", *words, *more, *place])
    find_study("in_distribution").main()
    printed = capsys.readouterr().out
    assert "LoRA" in printed
    assert str(out) in printed
    assert lines_of("in_distribution", out)[0]["about"]["set"] == {
        "task.limit": 8,
        "predict.samples": [0],
    }
    monkeypatch.setattr(sys, "argv", ["report", "--out", str(out)])
    report()
    text = (out / "pages" / "in_distribution.md").read_text()
    assert display("mc_dropout") in text
    assert display("blob") not in text
    for name in text.split("](../figures/")[1:]:
        assert (out / "figures" / name.partition(")")[0]).is_file()


def test_a_folder_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=str(tmp_path)):
        own_pages(tmp_path)

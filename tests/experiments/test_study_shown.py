"""What a study shows when it has run: tables and a figure of what is there, and what is missing."""

import doctest
import re
import sys
from pathlib import Path
from statistics import mean, stdev

import pytest
from app_cases import register_surprise
from study_cases import invent, lines_of, rows_of

from experiments.engine import tables, values
from experiments.engine.differences import Comparisons, metrics_of, recompute, write_comparisons
from experiments.engine.record import IDENTITY
from experiments.engine.results import changing, load_study, read_results, results_path
from experiments.engine.rows import rows_path, write_rows
from experiments.engine.run import show_study
from experiments.engine.tables import CORRECTED, UNCORRECTED, arms_table, score_columns
from experiments.engine.values import display
from experiments.studies.in_distribution.study import main

SIZES = {"micro-wgs": 60, "micro-arce": 50}


def test_a_study_of_fewer_methods_gets_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command to the tables, with two seeds and methods, and no word on what is not there."""
    out = tmp_path / "results"
    words = ["--seeds", "2", "--methods", "lora", "mc_dropout", "--tasks", "micro-wgs", "--steps", "1"]
    more = ["--set", "task.limit=8", "--set", "predict.samples=[0]", "--launcher", "serial"]
    place = ["--out", str(out), "--runs", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", ["in_distribution", *words, *more, *place])
    main()
    printed = capsys.readouterr().out
    assert str(out) in printed
    assert lines_of("in_distribution", out)[0]["about"]["set"] == {"task.limit": 8, "predict.samples": [0]}
    text = (out / "in_distribution.md").read_text()
    for shown in (text, printed):
        assert "LoRA" in shown
        assert display("blob") not in shown
    assert "Incomplete" not in text
    runs = load_study("in_distribution", out).arms["mc_dropout"]["micro-wgs"].values()
    nll = [record["metrics"]["0"]["nll"] for record in runs]
    row = next(line for line in text.splitlines() if line.startswith(f"| {display('mc_dropout')} |"))
    assert f"{mean(nll):.3f} ± {stdev(nll):.3f}" in row
    [figure] = re.findall(r"\]\((.*\.svg)\)", text)
    assert (out / figure).is_file()


def test_what_is_incomplete_is_said(tmp_path: Path) -> None:
    runs = invent("some", tmp_path, tasks={"t": 40}, seeds=2)
    with changing(results_path("some", tmp_path)) as store:
        record = store.records[runs[1]["hash"]]
        kept = {key: record[key] for key in ("schema", "kind", *IDENTITY)} | {
            "failed": "The loss is not finite."
        }
        store.records[runs[1]["hash"]] = kept
    show_study(load_study("some", tmp_path), tmp_path)
    text = (tmp_path / "some.md").read_text()
    assert "Incomplete: BLoB on t has 1 of 2 seeds: The loss is not finite." in text
    assert "| BLoB | 23,616 | failed 1/2 |" in text
    assert ".svg" not in text


def test_differences_that_are_all_infinite_are_said_in_words(tmp_path: Path) -> None:
    with_rows(tmp_path)
    write_comparisons("some", Comparisons(), tmp_path)
    stored = read_results("some", tmp_path)
    for entry in stored.comparisons:
        entry["nll"] |= dict.fromkeys(("difference", "low", "high"))
    stored.write()
    show_study(load_study("some", tmp_path), tmp_path)
    text = (tmp_path / "some.md").read_text()
    assert "| BLoB |" in text
    assert "no difference to MLE (LoRA) in NLL to draw" in text
    assert not [*tmp_path.glob("*.svg")]


def with_rows(results: Path) -> None:
    invent("some", results, tasks=SIZES, seeds=2)
    write_rows("some", rows_of({task: (count, 2) for task, count in SIZES.items()}), results)


def caption(results: Path) -> str:
    return arms_table(load_study("some", results)).caption


def test_the_caption_says_that_rows_are_missing(tmp_path: Path) -> None:
    with_rows(tmp_path)
    write_comparisons("some", Comparisons(), tmp_path)
    assert f"{CORRECTED}; the primary contrast (BaRA) is not corrected" in caption(tmp_path)
    stored = read_results("some", tmp_path)
    for entry in stored.comparisons:  # as they were before rows were stored
        for metric in metrics_of(entry):
            entry[metric] = {key: entry[metric][key] for key in ("difference", "low", "high", "verdict")}
    stored.write()
    assert caption(tmp_path).endswith(UNCORRECTED)


def test_intervals_are_computed_again_where_all_rows_are(tmp_path: Path) -> None:
    with_rows(tmp_path)
    found = write_comparisons("some", Comparisons(), tmp_path)
    line = f"some: {len(found)} comparisons, "
    assert recompute(tmp_path) == [f"{line}as stored"]
    stored = read_results("some", tmp_path)
    stored.comparisons[0]["nll"]["difference"] += 1
    stored.write()
    assert recompute(tmp_path) == [f"{line}changed"]
    assert read_results("some", tmp_path).comparisons == found
    rows_path("some", tmp_path).unlink()
    (line,) = recompute(tmp_path)
    assert line == "some: not recomputed, the rows of 12 runs are not stored"


def test_a_new_metric_is_compared_and_leaves_stored_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One registration, no edit of a study: a column and a comparison; older results lack both."""
    with_rows(tmp_path)
    found = write_comparisons("some", Comparisons(), tmp_path)
    register_surprise(monkeypatch)
    assert recompute(tmp_path) == [f"some: {len(found)} comparisons, as stored"]
    assert "surprise" not in score_columns(load_study("some", tmp_path))
    invent("new", tmp_path, tasks=SIZES, seeds=2)
    write_rows("new", rows_of({task: (count, 2) for task, count in SIZES.items()}), tmp_path)
    for entry in write_comparisons("new", Comparisons(), tmp_path):
        keys = ("difference", "low", "high")
        assert [entry["surprise"][key] for key in keys] == [entry["nll"][key] for key in keys]
    show_study(load_study("new", tmp_path), tmp_path)
    text = (tmp_path / "new.md").read_text()
    assert "| surprise ↓ (nats) |" in text
    assert "surprise (nats) ↓ by task" in text


def test_examples_in_docstrings() -> None:
    assert not any(doctest.testmod(module).failed for module in (tables, values))

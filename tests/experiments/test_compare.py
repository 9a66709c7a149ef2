"""From stored rows to comparisons, and which baseline is the reference."""

from dataclasses import replace
from pathlib import Path

import pytest
from study_cases import invent, rows_of

from bara_pyro.errors import DataError
from bara_pyro.runs.atomic import write_json
from experiments.engine.differences import (
    AVERAGE,
    Comparisons,
    Contrast,
    best_baseline,
    compare,
    compare_study,
    default_references,
    write_comparisons,
)
from experiments.engine.results import load_study
from experiments.engine.rows import write_rows
from experiments.engine.search import KIND


def choices(path: Path, trials: dict[str, list[float | None]], **other: dict) -> Path:
    about = {"model": "microworld", "validation_rows": 0, "tasks": ["micro-wgs"], "steps": 1000, "seeds": 1}
    methods = {
        method: {**about, **other.get(method, {}), "trials": [{"settings": {}, "nll": v} for v in nll]}
        for method, nll in trials.items()
    }
    write_json(path, {"kind": KIND, "methods": methods})
    return path


def test_the_best_baseline_is_chosen_by_validation_and_is_not_ours(tmp_path: Path) -> None:
    path = choices(
        tmp_path / "c.json",
        {"lora": [0.6, 0.55], "blob": [0.7, None, 0.5], "ivon": [0.1], "bara": [0.2], "bara-gate": [0.1]},
    )
    arms = ["lora", "blob", "bara", "bara-gate", "blob"]
    assert best_baseline(arms, path) == "blob"
    assert default_references(arms, path) == ["lora", "blob"]
    assert default_references(["lora", "bara"], path) == ["lora"]
    assert default_references(["LoRA with rehearsal", "bara", "lora"], path) == [
        "lora",
        "LoRA with rehearsal",
    ]
    assert default_references(["blob", "bara"], path) == ["blob"]
    assert default_references(["lora"], tmp_path / "absent.json") == ["lora"]
    with pytest.raises(DataError, match="None of the arms bara, Gamma is a reference"):
        default_references(["bara", "Gamma", "bara"], path)


def test_searches_that_differ_choose_nothing(tmp_path: Path) -> None:
    path = choices(tmp_path / "c.json", {"lora": [0.6], "blob": [0.5], "bara": [0.1]}, bara={"steps": 5})
    assert best_baseline(["lora", "blob", "bara"], path) == "blob"
    path = choices(tmp_path / "c.json", {"lora": [0.6], "blob": [0.5]}, blob={"steps": 5})
    with pytest.raises(DataError, match="blob and lora were not searched alike"):
        best_baseline(["lora", "blob"], path)


def test_a_study_is_compared_from_its_rows_and_written(tmp_path: Path) -> None:
    results, path = tmp_path / "results", choices(tmp_path / "c.json", {"lora": [0.6], "blob": [0.5]})
    rows = rows_of({"micro-wgs": (200, 2), "micro-arce": (150, 2)})
    primary = Comparisons(Contrast("blob", "lora", "acc"))
    entries = compare_study(rows, replace(primary, choices=path))
    assert entries == compare(rows, ["lora", "blob"], primary.primary)
    assert {e["task"] for e in entries} == {"micro-wgs", "micro-arce", AVERAGE}
    assert {(e["arm"], e["reference"]) for e in entries} == {
        ("blob", "lora"), ("bara", "lora"), ("lora", "blob"), ("bara", "blob")
    }  # fmt: skip
    invent("some", results)
    write_rows("some", rows, results)
    found = write_comparisons("some", primary, results)
    assert load_study("some", results).comparisons == found
    assert {e["task"] for e in found} == {"micro-wgs", "micro-arce", AVERAGE}


def test_on_shifted_tasks() -> None:
    own = rows_of({"micro-obqa": (50, 2)})
    shifted = [
        replace(run, task="micro-obqa") for run in rows_of({"micro-near": (40, 2), "micro-far": (30, 2)})
    ]
    entries = compare_study([*own, *shifted], Comparisons(tested_on=("micro-near", "micro-far")))
    assert {e["task"] for e in entries} == {"micro-near", "micro-far", AVERAGE}
    assert {e["task"] for e in compare_study([*own, *shifted], Comparisons())} == {"micro-obqa"}

"""From run folders to comparisons, and which baseline is the reference."""

from pathlib import Path

import pytest
from study_cases import invent, predictions, write_run

from bara_pyro.errors import DataError
from bara_pyro.runs.store import write_json
from experiments.engine.compare import best_baseline, compare_study, default_references, read_predictions
from experiments.engine.differences import AVERAGE, compare
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


def test_an_experiment_is_compared_from_its_run_folders(tmp_path: Path) -> None:
    runs = invent("some", tmp_path / "results", tmp_path / "runs", seeds=2)
    path = choices(tmp_path / "c.json", {"lora": [0.6], "blob": [0.5]})
    entries = compare_study(runs, tmp_path / "runs", choices=path)
    direct = {
        task: {
            arm: {seed: predictions(arm, task, seed, rows) for seed in (0, 1)}
            for arm in ("lora", "blob", "bara")
        }
        for task, rows in {"micro-wgs": 200, "micro-arce": 150}.items()
    }
    assert entries == compare(direct, ["lora", "blob"])
    assert {e["task"] for e in entries} == {"micro-wgs", "micro-arce", AVERAGE}
    assert {(e["arm"], e["reference"]) for e in entries} == {
        ("blob", "lora"), ("bara", "lora"), ("lora", "blob"), ("bara", "blob")
    }  # fmt: skip
    with pytest.raises(DataError, match="no predictions"):
        compare_study([{**runs[0], "hash": "absent"}], tmp_path / "runs", ["lora"])


def test_on_shifted_tasks(tmp_path: Path) -> None:
    runs = invent("some", tmp_path / "results", tmp_path / "runs", tasks={"micro-obqa": 50}, seeds=1)
    for run in runs:
        for task, rows in {"micro-near": 40, "micro-far": 30}.items():
            folder = tmp_path / "runs" / run["hash"] / "evaluation" / f"{task}-test"
            write_run(folder, *predictions(run["arm"], task, run["seed"], rows))
    found = read_predictions(runs, tmp_path / "runs", ("micro-near", "micro-far"))
    assert {task: len(arms["bara"][0][0]) for task, arms in found.items()} == {
        "micro-near": 40,
        "micro-far": 30,
    }
    entries = compare_study(runs, tmp_path / "runs", ["lora"], shifted=("micro-near", "micro-far"))
    assert {e["task"] for e in entries} == {"micro-near", "micro-far", AVERAGE}
    with pytest.raises(DataError, match="'lora' has two runs of seed 0 on micro-near"):
        read_predictions([*runs, {**runs[0], "task": "other"}], tmp_path / "runs", ("micro-near",))

"""The README's second example: what is kept of a run of `bara train`."""

import json
import sys
from pathlib import Path

import pytest

from bara_pyro.runs.store import write_json
from experiments.engine.results import read_results
from experiments.studies.laptop import study


def test_scores_and_minutes_are_kept_and_folders_of_this_machine_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {"n": 4, "acc": 75.0, "ece": 3.0, "nll": 0.5, "brier": 0.3}
    report = {
        "method": "lora",
        "task": "ag_news",
        "metrics": {"10": scores},
        "majority_class": {"label": "Sports", "acc": 28.0},
        "parameters": {"trainable": 5},
        "sparsity": {},
        "environment": {},
        "notes": [],
        "wall_clock_train_s": 120.0,
        "wall_clock_evaluate_s": 30.0,
    }
    config = {
        "backbone": {"name": str(tmp_path), "dtype": "bfloat16"},
        "task": {"name": "ag_news", "data_dir": str(tmp_path), "limit": 400, "train_rows": 320},
        "train": {"steps": 2, "batch_size": 4},
        "adapter": {"r": 8, "target_modules": "a.*"},
    }
    write_json(tmp_path / "run" / "metrics.json", report)
    write_json(tmp_path / "run" / "config.json", {"config": config})
    monkeypatch.setattr(study, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["laptop", "--runs", str(tmp_path / "run")])
    study.main()
    results = read_results(tmp_path / "laptop.json")
    assert results.entries["lora"]["minutes"] == {"train": 2.0, "evaluate": 0.5, "all": 2.5}
    assert results.entries["lora"]["metrics"] == {"10": scores}
    assert str(tmp_path) not in json.dumps(results.entries)
    table, times = study.STUDY.parts(results)
    assert [row["acc"] for row in table.rows] == [75.0]
    assert times.rows == [{"method": "lora", "train": 2.0, "evaluate": 0.5, "all": 2.5}]
    assert "320 training" in study.STUDY.question.format(**study.STUDY.facts(results))

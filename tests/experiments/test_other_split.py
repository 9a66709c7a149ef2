"""Scores on the other split: asked for once, shown beside the test scores, compared with them."""

import sys
from pathlib import Path

import pytest
from study_cases import invent

from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import evaluate_system
from bara_pyro.runs.folder import save_system, write_config
from bara_pyro.runs.system import build_system
from experiments.engine import other_split
from experiments.engine.results import Results, load_study, read_results
from experiments.page.tables import selection, variants_table
from experiments.page.values import display


def test_scores_are_those_of_the_validation_rows(tmp_path: Path) -> None:
    settings = {"method": "bara", "task.limit": 12, "predict.samples": [4]}
    system = build_system(load_config(overrides=settings))
    write_config(system, tmp_path / "run")
    save_system(system, tmp_path / "run", step=1)
    found = other_split.scores(tmp_path / "run", 4)
    other = build_system(load_config(overrides={**settings, "task.evaluate_on": "validation"}))
    expected = evaluate_system(other, tmp_path / "other")["metrics"]["4"]
    assert found.pop("split") == "validation"
    assert found == pytest.approx({key: expected[key] for key in other_split.KEPT})
    assert found["n"] == 12


def test_runs_are_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    invent("trial", results)
    study = load_study("trial", results)
    asked = []
    monkeypatch.setattr(
        other_split, "scores", lambda folder, samples: asked.append(folder.name) or {"nll": 0.5}
    )
    runs = tmp_path / "elsewhere"
    for record in study.finished:
        (runs / record["config_hash"]).mkdir(parents=True)
    words = ["--studies", "trial", "--runs", str(runs), "--out", str(results)]
    monkeypatch.setattr(sys, "argv", ["other_split", *words])
    other_split.main()
    assert sorted(asked) == sorted({record["config_hash"] for record in study.finished})
    other_split.main()
    assert len(asked) == len(set(asked))
    assert set(read_results("other_split", results).entries) == set(asked)
    assert all(record["other_split"] == {"nll": 0.5} for record in load_study("trial", results).finished)


def test_the_table_says_whether_the_choice_holds(tmp_path: Path) -> None:
    results = tmp_path / "results"
    invent("trial", results)
    study = load_study("trial", results)
    assert "other" not in {column.key for column in variants_table(study).columns}
    assert selection(study) == ""
    test_nll = {row["arm"]: row["nll"] for row in variants_table(study).rows}
    order = sorted(test_nll, key=lambda arm: test_nll[arm][0])  # of mean and spread the mean

    def choose(arm: str, split: str = "validation") -> str:
        known = {
            record["config_hash"]: {"split": split, "nll": 0.1 if name == arm else 0.9}
            for name, tasks in study.arms.items()
            for seeds in tasks.values()
            for record in seeds.values()
        }
        Results("other_split", results, {}, known).write()
        again = load_study("trial", results)
        assert f"{split} NLL ↓" in {column.heading for column in variants_table(again).columns}
        return selection(again)

    assert "the best of" in choose(order[0])
    assert f"number {len(order)}," in choose(order[-1])
    # Chosen on the runs' own rows, judged on the others.
    words = choose(order[-1], "test")
    assert words.startswith(f"Best by validation NLL: {display(order[0])};")
    assert "the best of" not in words

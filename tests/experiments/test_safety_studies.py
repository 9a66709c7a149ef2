"""Regret and learning curves: designs that are balanced, figures that are those of the records."""

import math
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from importlib import import_module
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from study_cases import make_record, predictions, run_rows

from bara_pyro.metrics import holm
from bara_pyro.report import Table
from experiments.engine.differences import averaged
from experiments.engine.results import Arms, Study
from experiments.engine.rows import RunRows, write_rows

regret: Any = import_module("experiments.studies.regret.study")
curves: Any = import_module("experiments.studies.learning_curves.study")


def run(nll: float, draws: bool = False) -> dict[str, Any]:
    """Return what a record holds of scores; those at S = 0 are worse where draws matter."""
    scores = {"acc": 50.0, "ece": 1.0, "brier": 0.5}
    return {"metrics": {"0": {**scores, "nll": nll + 9 * draws}, "10": {**scores, "nll": nll}}}


def test_every_two_levels_of_the_grid_meet_once() -> None:
    settings = list(regret.grid().values())
    levels = {
        "task.train_rows": regret.ROWS,
        "train.lr": regret.RATES,
        "train.steps": regret.STEPS,
        "adapter.r": regret.RANKS,
    }
    assert len(settings) == 9
    for one, other in combinations(levels, 2):
        pairs = Counter((s[one], s[other]) for s in settings)
        assert pairs == dict.fromkeys(product(levels[one], levels[other]), 1)
    assert all(s["adapter.lora_alpha"] == 2 * s["adapter.r"] for s in settings)


def test_arms_say_whether_few_rows_have_a_rehearsal() -> None:
    arms = regret.arms(Namespace(methods=["lora", "bara-gate", "temperature"]))
    assert len(arms) == 9 * 5
    few = {"bara-gate": True, "LoRA with rehearsal": True, "BaRA gate without rehearsal": False}
    every = {"LoRA with rehearsal": False, "BaRA gate without rehearsal": False}
    for name, settings in arms.items():
        label, rows, *_ = name.split(", ")
        assert settings["adapter.calibrated"] is (every if rows == "all rows" else few).get(label)
    assert {name.split(", ")[0] for name in regret.arms(Namespace(methods=["lora"]))} == {
        *("lora", "LoRA with rehearsal")
    }


def test_regret_is_taken_from_the_best_with_the_same_task_and_rows() -> None:
    arms = {
        "lora, 80 rows, a": {"one": {0: run(0.9)}, "two": {0: run(1.5)}},
        "lora, all rows, a": {"one": {0: run(0.5)}, "two": {0: {"failed": "loss is nan"}}},
        "bara-gate, 80 rows, a": {"one": {0: run(0.7, draws=True)}, "two": {0: run(2.0, draws=True)}},
        "bara-gate, all rows, a": {"one": {0: run(0.6, draws=True)}, "two": {0: run(1.0, draws=True)}},
    }
    study = Study("regret", arms, {}, [])
    found = regret.regrets(study)
    assert found["lora"] == pytest.approx([0.0, 0.0, 0.2, math.inf])
    assert found["bara-gate"] == pytest.approx([0.0, 0.0, 0.1, 0.5])
    picture, table = regret.parts(study)
    rows = {row["name"]: row for row in table.rows}
    assert rows["BaRA gate"]["median"] == pytest.approx(0.05)
    assert rows["BaRA gate"]["near"] == 50
    assert rows["BaRA gate"]["80 rows"] == pytest.approx(0.25)
    assert rows["MLE (LoRA)"]["80 rows"] == pytest.approx(0.1)
    assert rows["MLE (LoRA)"]["all rows"] == math.inf
    assert rows["MLE (LoRA)"]["worst"] == math.inf
    # Setting by setting: .9 and .7, 1.5 and 2.0, .5 and .6, a run that failed and 1.0.
    assert rows["MLE (LoRA)"]["ahead"] == 2
    assert rows["MLE (LoRA)"]["less"] == math.inf
    assert "ahead" not in rows["BaRA gate"]
    axes = picture.draw().axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["BaRA gate", "MLE (LoRA)"]
    marks = {(line.get_marker(), line.get_ydata()[0]): line.get_xdata()[0] for line in axes.lines}
    assert marks["o", 0] == pytest.approx(0.05)
    assert marks["|", 0] == marks["x", 0] == pytest.approx(0.5)
    assert marks["x", 1] == regret.WORST


def test_where_all_runs_with_some_rows_failed_nothing_is_the_best() -> None:
    arms = {
        "lora, 80 rows, a": {"one": {0: {"failed": "loss is nan"}}},
        "lora, all rows, a": {"one": {0: run(0.5)}},
    }
    assert regret.regrets(Study("regret", arms, {}, []))["lora"] == [0.0, math.inf]


def test_curves_say_whether_few_rows_have_a_rehearsal() -> None:
    methods = ["bara-gate", "lora", "temperature"]
    arms = curves.arms(Namespace(methods=methods, rows=[20, 1280]))
    few = {name.removesuffix(", 20 rows"): arm for name, arm in arms.items() if name.endswith(" 20 rows")}
    many = {
        name.removesuffix(", 1280 rows"): arm for name, arm in arms.items() if name.endswith(" 1280 rows")
    }
    assert {name: arm["adapter.calibrated"] for name, arm in few.items()} == {
        "bara-gate": True,
        "BaRA gate without rehearsal": False,
        "lora": None,
        "LoRA with rehearsal": True,
        "temperature": None,
    }
    assert {name: arm["adapter.calibrated"] for name, arm in many.items()} == dict.fromkeys(methods)
    assert {name.split()[0].lower(): arm["method"] for name, arm in few.items()} == {
        **{"bara-gate": "bara-gate", "bara": "bara-gate"},
        **{"lora": "lora", "temperature": "temperature"},
    }


def test_gains_are_differences_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[RunRows] = []
    arms: Arms = {}
    nll: dict[tuple[str, int], float] = {}
    for method, number, seed in product(("bara", "lora"), (20, 80), range(3)):
        labels, found = predictions(f"{method}, {number} rows", "micro-obqa", seed, 120, 4)
        name = f"{'bara-gate' if method == 'bara' else method}, {number} rows"
        runs.append(run_rows(name, "micro-obqa", seed, labels, found))
        record = make_record(f"{method}, {number} rows", "micro-obqa", seed, labels, found)
        arms.setdefault(name, {}).setdefault("micro-obqa", {})[seed] = record
        nll[name, seed] = -found[10][torch.arange(120), labels].mean().item()
    study = Study("learning_curves", arms, {}, [], tmp_path)
    write_rows("learning_curves", runs, tmp_path)
    [table] = curves.gains(study)
    for row in table.rows:
        pair = [
            nll[f"bara-gate, {row['rows']} rows", s] - nll[f"lora, {row['rows']} rows", s] for s in range(3)
        ]
        assert row["lora"].replace("−", "-").startswith(f"{sum(pair) / 3:+.3f} [")
        assert "temperature" not in row
    assert [row["rows"] for row in table.rows] == [20, 80]
    # Better or worse is what is told after the correction for both.
    p_values = [averaged(runs, f"bara-gate, {n} rows", f"lora, {n} rows")["nll"]["p"] for n in (20, 80)]
    assert [not row["lora"].endswith("]") for row in table.rows] == [p < 0.05 for p in holm(p_values)]
    assert any(row["lora"].endswith("better") or row["lora"].endswith("worse") for row in table.rows)
    monkeypatch.setattr(curves, "holm", lambda found: [1.0] * len(found))
    assert not any("*" in row["lora"] for row in curves.gains(study)[0].rows)
    line = curves.curve_figure(study, "micro-obqa").axes[0].containers[0].lines[0]
    ours = [sum(nll[f"bara-gate, {n} rows", s] for s in range(3)) / 3 for n in (20, 80)]
    assert list(line.get_ydata()) == pytest.approx(ours)
    assert list(line.get_xdata()) == [20, 80]
    assert curves.gains(replace(study, folder=tmp_path / "elsewhere")) == []
    assert any(isinstance(part, Table) for part in curves.parts(study))

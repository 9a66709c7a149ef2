"""Regret: a design that is balanced, figures that are those of the records."""

import math
from argparse import Namespace
from collections import Counter
from importlib import import_module
from itertools import combinations, product
from typing import Any

import pytest

from experiments.engine.results import Study

regret: Any = import_module("experiments.studies.regret.study")


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
    found = regret.losses(study).groupby("method")["regret"].apply(sorted)
    assert found["lora"] == pytest.approx([0.0, 0.0, 0.2, math.inf])
    assert found["bara-gate"] == pytest.approx([0.0, 0.0, 0.1, 0.5])
    picture, table, _ = regret.parts(study)
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
    assert sorted(regret.losses(Study("regret", arms, {}, []))["regret"]) == [0.0, math.inf]

"""Figures of an experiment: they draw what the records hold, and stay small."""

from pathlib import Path

import numpy as np
import pytest
import torch
from study_cases import invent, predictions, rows_of

from bara_pyro.errors import DataError
from bara_pyro.metrics import reliability_bins
from bara_pyro.report.style import INK
from experiments.engine.differences import AVERAGE, compare
from experiments.engine.results import Study, load_study
from experiments.page.figures import (
    accuracy_ece_figure,
    difference_figure,
    pooled_bins,
    reliability_figure,
    risk_coverage_figure,
)

TASKS = {"micro-wgs": 120, "micro-arce": 90}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures")
    found = compare(rows_of({task: (rows, 2) for task, rows in TASKS.items()}, seeds=3), ["lora"])
    invent("some", folder, tasks=TASKS, comparisons=found)
    return folder


@pytest.fixture
def study(place: Path) -> Study:
    return load_study("some", place)


def test_pooled_bins_are_those_of_all_rows_together(study: Study) -> None:
    runs = [predictions("bara", "micro-wgs", seed, 120) for seed in range(3)]
    records = study.arms["bara"]["micro-wgs"].values()
    counts, accuracy, confidence = pooled_bins([record["reliability"]["10"] for record in records])
    together = reliability_bins(
        torch.cat([p[10] for _, p in runs]), torch.cat([labels for labels, _ in runs])
    )
    assert counts.tolist() == together.counts.tolist()
    np.testing.assert_allclose(accuracy, together.accuracy, atol=2e-5)
    np.testing.assert_allclose(confidence, together.confidence, atol=2e-5)


def titles(figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes]


def test_risk_coverage_draws_the_mean_over_seeds(study: Study) -> None:
    figure = risk_coverage_figure(study, "micro-arce")
    records = study.arms["blob"]["micro-arce"].values()
    expected = np.mean([record["risk_coverage"]["10"] for record in records], axis=0)
    *others, reference, own = figure.axes[1].lines
    assert len(others) == 3
    np.testing.assert_allclose(own.get_ydata(), expected)
    lora = study.arms["lora"]["micro-arce"].values()
    np.testing.assert_allclose(
        reference.get_ydata(), np.mean([record["risk_coverage"]["10"] for record in lora], axis=0)
    )
    assert own.get_xdata()[[0, -1]].tolist() == [2, 100]
    assert len(figure.axes[0].lines) == 4  # LoRA's own panel has no second curve of it


def test_an_arm_that_failed_has_no_point_and_no_panel(study: Study) -> None:
    study.arms["blob"]["micro-wgs"] = {seed: {"failed": "x"} for seed in range(3)}
    assert len(accuracy_ece_figure(study).axes[0].texts) == 2
    assert [t.splitlines()[0] for t in titles(reliability_figure(study, "micro-wgs"))] == [
        "MLE (LoRA)",
        "BaRA",
    ]
    with pytest.raises(DataError, match="no finished runs of some on absent"):
        reliability_figure(study, "absent")
    for tasks in study.arms.values():
        tasks["micro-wgs"] = {0: {"failed": "x"}}
    with pytest.raises(DataError, match="No arm of some"):
        accuracy_ece_figure(study)


def test_differences_have_their_intervals(study: Study) -> None:
    figure = difference_figure(study.comparisons, "lora")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["BLoB", "BaRA"]
    for container, arm in zip(axes.containers, ("blob", "bara"), strict=True):
        (entry,) = [e for e in study.comparisons if (e["arm"], e["task"]) == (arm, AVERAGE)]
        line, _, (bar,) = container
        (left, _), (right, _) = bar.get_segments()[0]
        found = entry["nll"]
        assert float(line.get_xdata()[0]) == found["difference"]
        assert (left, right) == pytest.approx((found["low"], found["high"]))
        assert line.get_markerfacecolor() == ("white" if found["low"] <= 0 <= found["high"] else INK)
    one = [{**e, "task": "only"} for e in study.comparisons if e["task"] == "micro-wgs"]
    assert len(difference_figure(one, "lora").axes[0].containers) == 2
    with pytest.raises(DataError, match="no difference to BLoB in nll"):
        difference_figure(study.comparisons, "blob")

"""Figures of an experiment: they draw what the records hold, and stay small."""

from pathlib import Path

import pytest
from study_cases import invent, rows_of

from bara_pyro.errors import DataError
from bara_pyro.report.style import INK
from experiments.engine.differences import AVERAGE, compare
from experiments.engine.figures import difference_figure
from experiments.engine.results import Study, load_study

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
    with pytest.raises(DataError, match="no difference to BLoB in NLL"):
        difference_figure(study.comparisons, "blob")

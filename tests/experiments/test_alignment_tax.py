"""The alignment tax on lm-evaluation-harness's tasks, of made results."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from bara_pyro.errors import ConfigError
from bara_pyro.types import Json
from experiments.engine.replies import harness_tax

pytest.importorskip("lm_eval")
from bara_pyro.extras.lmeval import harness

# As lm-eval gives them: of each task its metrics by filter, with what else it says.
MADE: dict[str, Json] = {
    "bara_arc_challenge": {"alias": "bara_arc_challenge", "acc,none": 0.31, "acc_norm,none": 0.35},
    "bara_gsm8k": {
        "alias": "bara_gsm8k",
        "exact_match,strict-match": 0.04,
        "exact_match_stderr,strict-match": 0.01,
        "exact_match,flexible-extract": 0.09,
    },
    "bara_hellaswag": {"acc,none": 0.42, "acc_stderr,none": 0.05},
    "bara_mmlu_college_physics": {"acc,none": 0.25},
    "bara_truthfulqa_mc2": {"acc,none": 0.38},
    "bara_winogrande": {"acc,none": 0.52},
}
TASKS = tuple(task.removeprefix("bara_") for task in MADE)


@pytest.fixture
def distributions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The distributions that were asked for; the language model as it was gets half of everything right."""
    asked: list[str] = []

    def model(system: object, *, law: str, **_: object) -> str:
        asked.append(law)
        return law

    def evaluated(lm: str, tasks: Sequence[str], **_: object) -> Json:
        half = 0.5 if lm == "base" else 1.0
        given = {f"bara_{task}": MADE[f"bara_{task}"] for task in tasks}
        return {
            "results": {
                task: {name: half * v if isinstance(v, float) else v for name, v in found.items()}
                for task, found in given.items()
            }
        }

    monkeypatch.setattr(harness, "BaraLM", model)
    monkeypatch.setattr(harness, "evaluate_tasks", evaluated)
    return asked


def fitted(*, draws: bool) -> Any:
    return SimpleNamespace(guide=SimpleNamespace(stochastic=draws), model=SimpleNamespace(latents=draws))


def test_six_tasks_with_gsm8k_among_them(distributions: list[str], tmp_path: Path) -> None:
    tax = harness_tax(tmp_path, TASKS, rows=50, samples=4)
    expected = (31.0, 4.0, 42.0, 25.0, 38.0, 52.0)
    for draws, distribution in ((True, "joint"), (False, "mean")):
        after, before = tax(fitted(draws=draws))
        assert after == {task: {"acc": pytest.approx(v)} for task, v in zip(TASKS, expected, strict=True)}
        assert before == {
            task: {"acc": pytest.approx(v / 2)} for task, v in zip(TASKS, expected, strict=True)
        }
        assert distributions[-1] == distribution
    assert distributions == ["base", "joint", "mean"]  # before is asked once


def test_what_is_counted_is_what_the_task_counts() -> None:
    """The metric and the filter of gsm8k's own file."""
    text = (files("bara_pyro.extras.lmeval.harness") / "tasks" / "gsm8k.yaml").read_text()
    task = yaml.safe_load(text)
    [metric] = task["metric_list"]
    names = {f"{metric['metric']},{own['name']}" for own in task["filter_list"]}
    assert {name for name in MADE["bara_gsm8k"] if "," in name and "stderr" not in name} == names


def test_a_task_that_counts_something_else_is_refused(
    distributions: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MADE, "bara_winogrande", {"perplexity,none": 12.0})
    with pytest.raises(ConfigError, match="bara_winogrande is scored by perplexity,none: choose tasks"):
        harness_tax(tmp_path, TASKS, rows=50, samples=4)(fitted(draws=True))

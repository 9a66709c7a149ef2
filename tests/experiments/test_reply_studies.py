"""Studies of sampled replies: what is kept of a model is what its replies score; tables by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bara_pyro.core.likelihood import CompletionLikelihood
from bara_pyro.extras.replies.generation import generate
from bara_pyro.metrics import self_bleu_diversity
from bara_pyro.runs.config import load_config
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train
from experiments.engine.replies import NUMBERS, QUESTIONS, numbers, questions_tax, read_numbers, sampled
from experiments.page.replies import (
    budget_table,
    difference_table,
    frontier_table,
    scores_table,
    tax_table,
)
from experiments.studies.chat.study import asked as chat_asked


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> System:
    settings = {"method": "bara-gate", "task.name": "micro-chat", "task.likelihood": "completion"}
    built = build_system(load_config(overrides={**settings, "train.steps": 4}))
    train(built, tmp_path_factory.mktemp("chat") / "run")
    return built


@pytest.mark.slow
def test_what_is_kept(system: System) -> None:
    asked = chat_asked()
    few = [str(prompt) for prompt in asked.prompts[:3]]
    sampling = replace(asked, prompts=few, temperatures=(0.8, 1.0))
    found = sampled(system, sampling, 4, questions_tax(12, ("micro-wgs",)))
    assert [(s["draws"], s["temperature"]) for s in found["samples"]] == [
        (draws, t) for draws in ("each", "mean") for t in (0.8, 1.0)
    ]
    made = list(
        generate(system.model, system.guide, few, replies=4, draws="mean", max_new_tokens=40, temperature=0.8)
    )
    scores = np.array([asked.score(i, [r.text for r in made[4 * i : 4 * i + 4]]) for i in range(3)])
    kept = found["samples"][2]
    assert read_numbers(kept["best"]["1"]) / 1000 == pytest.approx(scores.mean(axis=1), abs=6e-4)
    assert read_numbers(kept["best"]["4"]) / 1000 == pytest.approx(scores.max(axis=1), abs=6e-4)
    texts = [[r.text for r in made[4 * i : 4 * i + 4]] for i in range(3)]
    spread = self_bleu_diversity(texts).per_prompt
    assert read_numbers(kept["diversity"]) / 10 == pytest.approx(spread, abs=0.06)
    log_probs = [value for reply in made for value in reply.log_probs]
    assert kept["entropy"] == pytest.approx(-np.mean(log_probs), rel=1e-4)
    assert 0 <= found["tax"]["micro-wgs"]["acc"] <= 100
    assert isinstance(system.model.likelihood, CompletionLikelihood)
    assert found["nll"] > 0


def entry(method: str, seed: int, scores: list[float], shift: float = 0.0) -> dict[str, Any]:
    """An entry whose two prompts have these scores (percent), better with more replies."""
    kinds = ("mean",) if method == "lora" else ("each", "mean")
    samples = [
        {
            "draws": kind,
            "temperature": temperature,
            "best": {
                str(n): numbers(np.array([10 * min(100, s + 2 * i) for s in scores]))
                for i, n in enumerate(NUMBERS)
            },
            "diversity": numbers(np.array([400 + 100 * temperature + 10 * seed, 420 + 100 * temperature])),
            "distinct": [30.0, 40.0],
            "entropy": 0.8,
            "tokens": 10.0,
        }
        for kind in kinds
        for temperature in (0.6, 1.0)
    ]
    tasks = {task: {"acc": 50.0 + shift, "nll": 0.7} for task in QUESTIONS}
    before = {task: {"acc": 50.0, "nll": 0.8} for task in QUESTIONS}
    return {"method": method, "seed": seed, "nll": 1.0, "samples": samples, "tax": tasks, "before": before}


@pytest.fixture(scope="module")
def entries() -> list[dict[str, Any]]:
    return [
        entry("lora", 0, [50, 60]),
        entry("lora", 1, [52, 62]),
        entry("bara-gate", 0, [54, 62], shift=1.0),
        entry("bara-gate", 1, [54, 66], shift=3.0),
    ]


def test_tables_by_hand(entries: list[dict[str, Any]]) -> None:
    scores = {row["arm"]: row for row in scores_table(entries).rows}
    assert scores["MLE (LoRA)"]["best 1"] == pytest.approx((56, np.std([55, 57], ddof=1)))
    assert scores["BaRA gate"]["best 32"][0] == pytest.approx(59 + 10)
    differences = {row["arm"]: row["one interval"] for row in difference_table(entries).rows}
    assert differences["BaRA gate"]["difference"] == pytest.approx(3)
    assert differences["BaRA gate"]["se_seeds"] == pytest.approx(0, abs=1e-9)  # 3 and 3
    assert differences["BaRA gate"]["se_rows"] > 0
    budgets = {row["arm"]: row for row in budget_table(entries).rows}
    assert budgets["BaRA gate"]["target"] == pytest.approx(56 + 6)
    assert float(budgets["BaRA gate"]["budget"]) == pytest.approx(2**1.5, abs=0.06)  # 59 + 2 * 1.5
    frontier = {(row["arm"], row["than"]): row for row in frontier_table(entries).rows}
    assert frontier["BaRA gate", "MLE (LoRA)"]["one interval"]["difference"] == pytest.approx(3)
    assert frontier["BaRA gate", "BaRA gate, mean"]["one interval"]["difference"] == pytest.approx(0)
    tax = {row["arm"]: row for row in tax_table(entries).rows}
    assert tax["MLE (LoRA)"]["mean"][0] == pytest.approx(0)
    assert "minus" not in tax["MLE (LoRA)"]
    assert tax["BaRA gate"]["mean"] == pytest.approx((2, np.std([1, 3], ddof=1)))
    minus = tax["BaRA gate"]["minus interval"]  # 1 and 3 above LoRA's: Student's t of one degree, 12.7
    assert (minus["difference"], minus["high"] - 2) == pytest.approx((2, 12.706), rel=1e-4)
    of_one_seed = tax_table(entries[::2]).rows
    assert [row["arm"] for row in of_one_seed] == ["MLE (LoRA)", "BaRA gate"]
    assert all("minus" not in row and "mean interval" not in row for row in of_one_seed)


def test_differences_are_of_the_seeds_that_both_have(entries: list[dict[str, Any]]) -> None:
    more = [entry("lora", 5, [90, 95]), *reversed(entries)]
    assert difference_table(more).rows == difference_table(entries).rows
    assert tax_table(more).rows[1]["minus interval"] == tax_table(entries).rows[1]["minus interval"]

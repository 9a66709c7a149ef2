"""The study of decisions with a promise: what is measured, the section, the figure."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scipy.stats import beta
from study_cases import page_of

from bara_pyro.metrics import expected_coverage, prediction_sets
from bara_pyro.runs.asked import ask
from bara_pyro.runs.config import load_config
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from experiments.engine.sweep import Job
from experiments.studies.decide import study as decide
from experiments.studies.decide.study import (
    abstention_table,
    alarm_table,
    distribution_range,
    kept,
    set_table,
)

SMALL = {"task.name": "micro-arcc", "task.limit": 60, "train.steps": 2}
ARGS = Namespace(rows=12, samples=2)


@pytest.mark.parametrize("method", ["lora", "bara-gate"])
def test_what_is_measured(method: str, tmp_path: Path) -> None:
    settings = {**SMALL, "method": method, "adapter.distance_aware": True}
    train(build_system(load_config(overrides=settings)), tmp_path / "run")
    found = decide.look(load_system(tmp_path / "run"), ARGS)
    assert (found["calibration_rows"], found["test_rows"]) == (60, 60)
    # Read back and asked without the noise of foreign rows: the same sets.
    system = load_system(tmp_path / "run")
    assert system.corrections.distance is not None
    system.corrections.distance.scale.zero_()
    known, asked = (ask(system, rows, "", samples=2) for rows in (system.task.validation, system.task.test))
    sets = prediction_sets(known.log_probs, known.labels, alpha=0.2)(asked.log_probs)
    own = found["sets"]["lac"]["0.2"]["own"]
    assert own["mean_size"] == pytest.approx(float(sets.sum(1).double().mean()), abs=0.05)
    assert own["expected_coverage"] == pytest.approx(expected_coverage(sets, asked.truth), abs=2)
    assert set(found["alarms"]["plain"]) == ({"total", "epistemic"} if method == "bara-gate" else {"total"})
    assert set(found["alarms"]["aware"]) == {"total", "epistemic", "distance"}
    assert all("refused" in told or told["bound"] <= 30 for told in found["abstention"].values())


def test_every_run_is_distance_aware(jobs_of: Callable[..., list[Job]]) -> None:
    jobs = jobs_of("decide")
    assert len(jobs) == 3 * 2
    assert all(job.settings["adapter.distance_aware"] is True for job in jobs)


def test_sets_and_abstention_are_without_the_noise_of_foreign_rows() -> None:
    aware, plain = (
        build_system(load_config(overrides={**SMALL, "method": "lora", **more}))
        for more in ({"adapter.distance_aware": True}, {})
    )
    distance = aware.corrections.distance
    assert distance is not None
    with torch.no_grad():
        distance.scale.fill_(3.0)
        distance.radius.fill_(0.0)
        distance.whitening.copy_(torch.eye(len(distance.mean)))
    found = decide.look(aware, Namespace(rows=5, samples=2))
    known, others = decide.asked_rows(plain, 5, 2)
    assert found["sets"] == decide.sets_of(plain, known, others)
    assert found["alarms"]["plain"] == decide.alarms_of(plain, known, others, ("total",))


def stored(seeds: tuple[int, ...] = (0,)) -> dict:
    about = {"steps": 10, "samples": 2, "rows": 6, "delta": 0.05, "alpha": 0.05}
    entries = {}
    for method in ("lora", "bara-gate"):
        for task in ("micro-arcc", "micro-obqa"):
            for seed in seeds:
                given = {"answered": 40.0, "error_rate": 12.0, "expected_error_rate": 13.0, "bound": 19.0}
                numbers = {"mean_size": 1.5 + seed, "coverage": 90.0, "expected_coverage": 89.0}
                tasks = {"own": numbers, "micro-near": numbers, "micro-far": numbers}
                alarms = {"own": 4.0, "micro-near": 20.0, "micro-far": 90.0}
                entries[f"{method} {task} {seed}"] = {
                    "method": method, "task": task, "seed": seed, "calibration_rows": 400, "test_rows": 299,
                    "acc": 70.0,
                    "sets": {s: {str(a): tasks for a in decide.ALPHAS} for s in decide.SCORES},
                    "abstention": {"0.1": {"refused": "No."}, "0.2": given},
                    "alarms": {"plain": {"total": alarms}, "aware": {"total": alarms, "distance": alarms}},
                }  # fmt: skip
    return {"about": about, "entries": entries}


def test_section(tmp_path: Path) -> None:
    text = page_of("decide", stored((0, 1)), tmp_path, "Words.")
    assert "2 seeds" in text
    assert "Words." in text
    assert (tmp_path / "decide-coverage.svg").exists()
    entries = list(stored()["entries"].values())
    rows = set_table(entries).rows
    assert len(rows) == 2 * 2 * 2 * 3
    assert rows[0]["range"] == "{:.1f} to {:.1f}".format(*distribution_range(400, 0.05))
    assert [row["answered"] for row in abstention_table(entries).rows] == [None, None, 40.0, 40.0] * 2
    alarms = alarm_table(entries).rows
    assert [row["by"] for row in alarms if row["task"] == "micro-arcc"] == [
        *("distance", "entropy", "entropy", "entropy, aware", "entropy, aware")
    ]
    assert alarms[0]["own"] == 4.0
    # 89 % lies within the range of 0.1 alone: two scores, four runs.
    assert f"Of {5 * 2 * 4} coverages (runs, scores and levels) {2 * 4} lie within" in kept(entries)
    assert set_table(list(stored((0, 1))["entries"].values())).rows[0]["size"] == (
        2.0,
        pytest.approx(0.5**0.5),
    )


def test_the_range_is_where_the_distribution_lies() -> None:
    low, high = distribution_range(99, 0.1)
    assert beta(90, 10).cdf(low / 100) == pytest.approx(0.025)
    assert beta(90, 10).cdf(high / 100) == pytest.approx(0.975)

"""The study of decisions with a promise: what is measured, the section, the figure."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scipy.stats import beta

from bara_pyro.metrics import expected_coverage, prediction_sets
from bara_pyro.runs.asked import ask
from bara_pyro.runs.config import load_config
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train
from experiments.engine.sweep import Job
from experiments.studies.decide import study as decide
from experiments.studies.decide.study import (
    distribution_range,
)

SMALL = {"task.name": "micro-arcc", "task.limit": 60, "train.steps": 2}
ARGS = Namespace(rows=12, samples=2)


def test_what_is_measured(tmp_path: Path) -> None:
    settings = {**SMALL, "method": "bara-gate", "adapter.distance_aware": True}
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
    assert set(found["alarms"]["plain"]) == {"total", "epistemic"}
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


def test_the_range_is_where_the_distribution_lies() -> None:
    low, high = distribution_range(99, 0.1)
    assert beta(90, 10).cdf(low / 100) == pytest.approx(0.025)
    assert beta(90, 10).cdf(high / 100) == pytest.approx(0.975)

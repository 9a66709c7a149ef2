"""The study of sparsity: its runs, what it reads off a run, the tables and figures of its section."""

from argparse import Namespace
from collections.abc import Callable

import pytest
import torch

from bara_pyro.core.gate_draws import GateDraws
from bara_pyro.data import first_rows
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import true_probabilities
from bara_pyro.runs.system import build_system
from experiments.engine.sweep import Job
from experiments.studies.sparsity import study as sparsity

ARGS = Namespace(rows=6, module="v_proj", tau=0.1)


def test_every_run_is_another(jobs_of: Callable[..., list[Job]]) -> None:
    configs = [load_config(overrides=dict(job.settings)) for job in jobs_of("sparsity", "--seeds", "2")]
    assert len({config.hash for config in configs}) == len(configs) == 3 * 4 * 2
    assert all(config.adapter.lora_alpha / config.adapter.r == 2 for config in configs)


def test_what_is_read_off_a_run() -> None:
    settings = {"method": "bara", "task.name": "micro-arcc", "task.limit": 8, "adapter.r": 4}
    found = sparsity.look(build_system(load_config(overrides=settings)), ARGS)
    assert len(found["layers"]) == 4
    assert all(path.endswith("v_proj") for path in found["layers"])
    for reading in sparsity.READINGS:
        assert set(found[reading]["overall"]) == {"phi", "theta", "psi"}
        assert len(found[reading]["by_module"]["psi"]) == 4
    assert found["curve"]["psi"] == sorted(found["curve"]["psi"])
    at = sparsity.TAUS.index(0.1)
    assert found["curve"]["psi"][at] == pytest.approx(found["expectation"]["overall"]["psi"])
    assert 0 < found["rank"]["mean"] <= 4
    assert -1 <= found["rank"]["entropy"] <= 1


def test_rank_that_rises_with_the_entropy_is_found_to() -> None:
    settings = {"method": "bara", "task.name": "micro-arcc", "task.limit": 8, "adapter.r": 4}
    system = build_system(load_config(overrides=settings))
    rows = first_rows(system.split("test"), 6)
    truth = true_probabilities(system, rows, "test")
    entropy = -(truth * truth.clamp_min(1e-300).log()).sum(-1)
    log_probs = torch.nn.functional.one_hot(torch.tensor(rows.labels), truth.shape[1]).double().log()[None]
    draws = GateDraws((), rows.ids, None, None, log_probs)
    found = sparsity._relations(system, rows, draws, entropy[:, None].exp())
    assert found["entropy"] == pytest.approx(1)
    assert found["error"] is None  # all right: no error to go with

"""The study of sparsity: its runs, what it reads off a run, the tables and figures of its section."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from study_cases import page_of

from bara_pyro.core.gate_draws import GateDraws
from bara_pyro.data import first_rows
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import true_probabilities
from bara_pyro.runs.system import build_system
from experiments.engine.sweep import Job
from experiments.studies.sparsity import study as sparsity
from experiments.studies.sparsity.study import layer_figure, rank_table, sparsity_table

ARGS = Namespace(rows=6, module="v_proj", tau=0.1)


def entry(method: str, r: int, seed: int, percent: float) -> dict:
    gates = ("phi", "theta", "psi")
    found = {
        "overall": dict.fromkeys(gates, percent),
        "by_module": {gate: [percent - 1, percent + 1] for gate in gates},
    }
    about = {"method": method, "r": r, "task": "micro-arcc", "seed": seed, "layers": ["a", "b"]}
    curve = {gate: [0.0, percent, 90.0] for gate in gates}
    rank = {"mean": r / 2, "over_rows": 0.5, "over_modules": 0.25, "within_modules": 1.0}
    rank |= {"entropy": 0.5 * seed, "error": None}
    return {**about, **dict.fromkeys(("draw", "mean", "expectation"), found), "curve": curve, "rank": rank}


def stored(ranks: tuple[int, ...] = (8, 16, 32, 64)) -> dict:
    found = [
        entry(method, r, seed, 10 + 2 * seed) for method in ("lora", "bara") for r in ranks for seed in (0, 1)
    ]
    about = {"tau": 0.1, "module": "v_proj", "rows": 6, "model": "microworld", "steps": 20, "draws": 20}
    about["taus"] = [0.01, 0.1, 1.0]
    return {"about": about, "entries": dict(enumerate(found))}


def entries(*ranks: int) -> list[dict]:
    return list(stored(ranks or (8, 16, 32, 64))["entries"].values())


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


def test_table_has_the_papers_figures_beside() -> None:
    rows = sparsity_table(entries()).rows
    own = [row for row in rows if row["reading"] == "one draw" and row["gate"] == "Φ"]
    assert own[0]["8"] == pytest.approx((11.0, 2**0.5))
    paper = [row for row in rows if row["reading"] == "paper"]
    assert len(paper) == 6
    assert paper[1]["64"] == 5.52
    few = sparsity_table(entries(8, 16)).rows
    assert not [row for row in few if row["reading"] == "paper"]
    assert rank_table(entries()).rows[0]["mean"] == (4, 0)
    assert rank_table(entries()).rows[0]["entropy"] == pytest.approx((0.25, 0.5 / 2**0.5))


def test_section(tmp_path: Path) -> None:
    text = page_of("sparsity", stored(), tmp_path, "What it says.")
    assert "# Sparsity" in text
    assert "What it says." in text
    assert "2 seeds" in text
    assert {path.name for path in tmp_path.iterdir()} == {"sparsity-layers.svg", "sparsity-tau.svg"}


def test_a_panel_a_rank_and_method() -> None:
    axes = layer_figure(entries()).axes
    assert len(axes) == 8
    assert [len(one.lines) for one in axes] == [1] * 4 + [3] * 4  # LoRA has A x alone
    assert list(axes[-1].lines[0].get_ydata()) == [10.0, 12.0]  # the mean of two seeds, layer by layer

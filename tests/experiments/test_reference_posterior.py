"""The experiment on the reference posterior: what is kept, what is not repeated, how it is shown."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from study_cases import page_of

from bara_pyro.errors import ConfigError
from experiments.engine.results import read_results
from experiments.studies.reference_posterior import study as experiment
from experiments.studies.reference_posterior.study import NUTS_ARM, programs

TINY = experiment.Settings(samples=8, warmup=15, chains=1, draws=20, steps=2)


def forbidden(*_: object, **__: object) -> Any:
    raise AssertionError("done again")


@pytest.mark.slow
def test_arms_are_kept_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = experiment.started("found", tmp_path, TINY)
    monkeypatch.setattr(experiment, "ARMS", ("weibull", "delta"))
    calls = {"count": 0}
    arm = experiment.guide_arm

    def killed_at_the_second(name: str, *rest: Any) -> dict[str, Any]:
        calls["count"] += 1
        if calls["count"] == 2:
            raise KeyboardInterrupt
        return arm(name, *rest)

    monkeypatch.setattr(experiment, "guide_arm", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        experiment.run("phi*theta", found, TINY, tmp_path)
    found = experiment.started("found", tmp_path, TINY)
    assert list(programs(found)["phi*theta"]) == [NUTS_ARM, "weibull"]
    monkeypatch.setattr(experiment, "nuts", forbidden)
    experiment.run("phi*theta", found, TINY, tmp_path)  # the draws come from their file
    arms = programs(read_results("found", tmp_path))["phi*theta"]
    assert list(arms) == [NUTS_ARM, "weibull", "delta"]
    assert arms["delta"]["importance"] is None
    assert len(arms["weibull"]["gates"]) == len(arms[NUTS_ARM]["gates"]) == 14
    monkeypatch.setattr(experiment, "guide_arm", forbidden)
    experiment.run("phi*theta", found, TINY, tmp_path)
    other = replace(TINY, seed=1)
    model, batch, _ = experiment.program("phi*theta", other)
    with pytest.raises(AssertionError, match="done again"):  # draws of other settings are not taken
        experiment.sampled(model, batch, other, tmp_path / "phi-theta.safetensors")
    with pytest.raises(ConfigError, match="holds results with seed=0, not 1"):
        experiment.started("found", tmp_path, other)


def made_up() -> dict[str, Any]:
    """Results of one program with two gates."""
    levels = torch.linspace(0, 1, 101).tolist()
    gate = {"mean": 1.0, "guide_mean": 1.25, "sd_ratio": 0.5, "wasserstein": 0.25, "ks": 0.2, "ks_noise": 0.1}
    weights = {"evidence": -9.0, "gap": 0.75, "k_hat": 0.31, "bounded": True}
    nuts = {
        "rows": 6,
        "tokens": 1,
        "gates": ["phi[model.layers.1.self_attn.v_proj, 0]", "theta/lm_head[3, 0, 1]"],
        "truth": [0.4, 0.6],
        "sd": [0.5, 1.0],
        "ess": [700.4, 300.2],
        "r_hat": [1.001, 1.004],
        "divergences": 0,
        "quantiles": [levels, levels],
    }
    family = {"largest_difference": 3.25, "quantiles": [levels, levels]}
    return {
        "about": {"draws": 4000, "chains": 2, "samples": 500},
        "programs": {
            "phi*theta": {
                NUTS_ARM: nuts,
                "weibull": family
                | {"gates": [gate, gate | {"sd_ratio": 0.9, "ks": 0.05}], "importance": weights},
                "delta": family | {"gates": [gate, gate], "importance": None},
            }
        },
    }


def test_section(tmp_path: Path) -> None:
    text = page_of("reference_posterior", made_up(), tmp_path / "figures", "What was learnt.")
    assert "| weibull | 0.70 | 0.50 | 0.25 | 0.25 | 1 of 2 | 3.2 | -9.00 | 0.75 | 0.31 |" in text
    assert "| delta | 0.50 | 0.50 | 0.25 | 0.25 | 2 of 2 | 3.2 | – | – | – |" in text
    assert "2 gates, 6 rows of 1 token." in text
    assert "largest R-hat 1.004, smallest effective sample size 300" in text
    assert "What was learnt." in text
    assert "(../figures/reference_posterior.svg)" in text
    assert (tmp_path / "figures" / "reference_posterior.svg").exists()
    assert "mistake" not in text
    stored = made_up()
    stored["programs"]["phi*theta"]["weibull"]["importance"]["bounded"] = False
    assert "mistake somewhere: phi*theta, weibull." in page_of("reference_posterior", stored, tmp_path)

"""The experiment on simulation-based calibration: what is kept, what is not repeated, how it is shown."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from bara_pyro.diagnostics.posterior.sbc import sbc
from bara_pyro.diagnostics.posterior.uniformity import ecdf_test
from bara_pyro.errors import ConfigError
from experiments.engine.results import read_results, results_path
from experiments.studies.reference_posterior.study import asked_of, program, programs
from experiments.studies.sbc import study as experiment
from experiments.studies.sbc.study import (
    ARMS,
    FAMILIES,
    NUTS_ARM,
    PRIOR,
    TOO_SURE,
    surprises,
    table,
)

TINY = experiment.Settings(steps=2, start=2, draws=7, thin=2, warmup=10)
N, L = 80, 15


def forbidden(*_: object, **__: object) -> Any:
    raise AssertionError("done again")


# What is kept ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_main_keeps_ranks_adds_to_them_and_refuses_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(*more: str, steps: int = 2) -> None:
        words = ["sbc", "--quick", "--steps", str(steps), "--start", "2", "--out", str(tmp_path), *more]
        monkeypatch.setattr(sys, "argv", words)
        experiment.main()

    main("--simulations", "1")
    kept = read_results("sbc", tmp_path)
    first = programs(kept)
    assert kept.about.items() >= vars(TINY).items()
    assert [*first] == ["phi", "phi*theta"]
    for latent, gates in (("phi", 4), ("phi*theta", 14)):
        assert [*first[latent]] == asked_of(latent, ARMS)
        for arm in first[latent].values():
            assert len(arm["names"]) == gates + 1
            assert arm["names"][-1] == "log-likelihood"
            (ranks,) = arm["ranks"]
            assert len(ranks) == gates + 1
            assert all(isinstance(rank, int) and 0 <= rank <= 7 for rank in ranks)
            assert arm["draws"] == 7
            assert arm["seconds"] > 0
    assert results_path("sbc", tmp_path).name in capsys.readouterr().out

    main("--simulations", "2")
    second = programs(read_results("sbc", tmp_path))
    for latent, arms in second.items():
        for name, arm in arms.items():
            before = first[latent][name]
            assert len(arm["ranks"]) == (2 if name in FAMILIES else 1)
            assert arm["ranks"][:1] == before["ranks"]
            assert (arm["seconds"] > before["seconds"]) == (name in FAMILIES)

    monkeypatch.setattr(experiment, "sbc", forbidden)
    monkeypatch.setattr(experiment, "program", forbidden)
    main("--simulations", "1")  # fewer than there are
    assert programs(read_results("sbc", tmp_path)) == second
    with pytest.raises(
        ConfigError, match="holds results with steps=2, not 3: give another folder with --out"
    ):
        main(steps=3)


def test_what_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = dict.fromkeys(ARMS, 0) | {"gamma": 3, PRIOR: 3}
    whole = experiment.started("none", tmp_path, TINY)
    experiment.run("phi", whole, TINY, wanted)
    calls = []

    def killed_at_the_fifth(*rest: Any, **options: Any) -> Any:
        calls.append(options["first"])
        if len(calls) == 5:
            raise KeyboardInterrupt
        return sbc(*rest, **options)

    monkeypatch.setattr(experiment, "sbc", killed_at_the_fifth)
    with pytest.raises(KeyboardInterrupt):
        experiment.run("phi", experiment.started("found", tmp_path, TINY), TINY, wanted)
    kept = experiment.started("found", tmp_path, TINY)
    assert [len(arm["ranks"]) for arm in programs(kept)["phi"].values()] == [3, 1]
    experiment.run("phi", kept, TINY, wanted)
    assert calls == [0, 1, 2, 0, 1, 1, 2]
    for arm, found in programs(read_results("found", tmp_path))["phi"].items():
        assert found["ranks"] == programs(whole)["phi"][arm]["ranks"]
        assert len({tuple(ranks) for ranks in found["ranks"]}) == 3  # of three data sets


# The arms --------------------------------------------------------------------------------------------------


def test_the_prior_arm_draws_from_the_prior_and_the_too_sure_one_near_its_mean() -> None:
    model, batch, _ = program("phi*theta", experiment.reference_posterior.Settings())
    drawn = experiment.prior_sampler(model, 300)(batch, 5)
    assert [value.shape[0] for value in drawn.values()] == [300, 300, 300]
    gates = torch.cat([value.flatten() for value in drawn.values()])
    assert len(gates) == 300 * 14
    assert stats.kstest(gates.numpy(), stats.expon.cdf).pvalue > 0.001
    assert not torch.equal(drawn["phi"], experiment.prior_sampler(model, 300)(batch, 6)["phi"])
    own, sure = (experiment.sampler_of(arm, model, batch, TINY)(batch, 1) for arm in ("weibull", TOO_SURE))
    for site, value in own.items():  # the same fit and the same draws, drawn together
        torch.testing.assert_close(sure[site].std(0), 0.3 * value.std(0))
        torch.testing.assert_close(sure[site].mean(0), value.mean(0))


def test_sbc_goes_on_where_it_was_left() -> None:
    model, batch, _ = program("phi", experiment.reference_posterior.Settings())
    sampler = experiment.prior_sampler(model, 7)
    whole = sbc(model, batch, sampler, simulations=4, seed=3)
    parts = [sbc(model, batch, sampler, simulations=2, first=first, seed=3).ranks for first in (0, 2)]
    assert torch.equal(whole.ranks, torch.cat(parts))
    assert not torch.equal(*parts)


# The section -----------------------------------------------------------------------------------------------


def arm(ranks: np.ndarray, *kinds: str) -> dict[str, Any]:
    names = [f"{kind}[{i}]" for i, kind in enumerate(kinds)]
    return {"names": [*names, "log-likelihood"], "draws": L, "ranks": ranks.tolist(), "seconds": 1.0}


def conjugate(kind: str, seed: int) -> np.ndarray:
    """Return ranks of two normal "gates" seen with noise, and of the log-likelihood, in closed form."""
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((N, 1, 2))
    seen = truth + 0.5 * rng.standard_normal((N, 1, 2))
    noise = rng.standard_normal((N, L, 2))
    posterior = seen / 1.25 + np.sqrt(0.2) * (0.3 if kind == "too sure" else 1) * noise
    drawn = noise if kind == "prior" else posterior
    density = stats.norm(seen, 0.5).logpdf
    likelihood = (density(drawn).sum(-1) < density(truth).sum(-1)).sum(1, keepdims=True)
    return np.concatenate([(drawn < truth).sum(1), likelihood], axis=1)


def test_the_joint_level_is_that_of_the_gates() -> None:
    """A gate whose p-value lies between the limits for two gates and for three quantities is uneven."""
    slanted = np.random.default_rng(0).beta(1, 1.2, (N, 300))
    ranks = (slanted * (L + 1)).astype(int)
    p = ecdf_test(torch.as_tensor(ranks), L).numpy()
    between = ranks[:, (p > 0.05 / 3) & (p < 0.05 / 2)]
    assert between.shape[1] > 0
    even = np.tile(np.arange(L + 1), 5)
    (row,) = table("phi", {"weibull": arm(np.stack([between[:, 0], even, even], 1), "phi", "phi")}).rows
    assert row["uneven"] == "1 of 2"


def test_controls_that_do_what_they_have_to_and_others() -> None:
    fair, sure, ignorant = (conjugate(kind, 3) for kind in ("exact", "too sure", "prior"))
    kinds = ("phi", "phi")
    right = {NUTS_ARM: arm(fair, *kinds), TOO_SURE: arm(sure, *kinds), PRIOR: arm(ignorant, *kinds)}
    assert surprises("phi", right) == []
    rows = {row["arm"]: row for row in table("phi", right).rows}
    assert rows[NUTS_ARM]["phi"] == pytest.approx(1, abs=3 * 0.9 / N**0.5)
    assert rows[TOO_SURE]["uneven"] == "2 of 2"
    assert rows[TOO_SURE]["phi"] > 1.5
    assert rows[PRIOR]["rank"] > 0.7  # the truth explains the answers better than the prior does
    wrong = {
        NUTS_ARM: right[TOO_SURE],
        TOO_SURE: right[NUTS_ARM],
        PRIOR: right[NUTS_ARM],
        "gamma": right[PRIOR],
    }
    said = surprises("phi", wrong)
    assert f"phi, {NUTS_ARM}: 2 uneven gates" in said
    assert f"phi, {TOO_SURE}: 0 uneven gates" in said
    assert f"phi, {PRIOR}: log-likelihood even" in said
    assert not any("gamma" in words for words in said)  # no control
    assert surprises("phi", {NUTS_ARM: right[PRIOR]}) == [f"phi, {NUTS_ARM}: log-likelihood uneven"]

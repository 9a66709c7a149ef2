"""Differences over several worlds, and how small a difference a study of so many can show."""

import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm, ttest_1samp
from scipy.stats import t as student

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.runs.atomic import write_json
from experiments.engine.arguments import preset
from experiments.engine.differences import Comparisons, Contrast, compare, compare_study
from experiments.engine.rows import RunRows
from experiments.engine.run import _settings
from experiments.engine.search import KIND
from experiments.engine.worlds import (
    Design,
    Spread,
    detectable,
    over_worlds,
    power,
    spread_of,
    standard_error,
)
from experiments.studies.confirmatory import study

TASKS, ROWS, SEEDS = ("micro-wgs", "micro-arcc"), 120, 3


def world(number: int, ours: float, *, noise: float = 0.1) -> list[RunRows]:
    """Rows of two arms, `bara-gate` better by `ours` nats in the mean; four rows a resident."""
    rng = np.random.default_rng(number)
    clusters = tuple(f"c{i // 4} of world {number}" for i in range(ROWS))
    out = []
    for task in TASKS:
        by_cluster = np.repeat(rng.normal(0, 0.1, ROWS // 4), 4)
        ids, labels = tuple(f"{task}{i}" for i in range(ROWS)), torch.zeros(ROWS, dtype=torch.long)
        for arm, gain in (("bara-gate", ours), ("temperature", 0.0)):
            for seed in range(SEEDS):
                own = by_cluster if gain else 0.0
                right = np.minimum(-0.8 + gain + own + noise * rng.normal() * bool(gain), -0.01)
                right = np.broadcast_to(right, ROWS)
                distribution = torch.tensor(np.stack([right, np.log1p(-np.exp(right))], axis=1))
                out.append(
                    RunRows(arm, "h", "c", task, seed, task, ids, clusters, labels, {10: distribution})
                )
    return out


def test_worlds_as_such_are_a_t_test_of_the_averages() -> None:
    gains = {"101": 0.1, "102": 0.3, "103": 0.2, "104": 0.45}
    found = over_worlds(
        {n: world(int(n), gain) for n, gain in gains.items()}, "bara-gate", "temperature", "nll"
    )
    by_hand = []
    for name, gain in gains.items():
        runs = world(int(name), gain)
        nll = {arm: np.mean([-r.log_probs[10][:, 0].mean() for r in runs if r.arm == arm]) for arm in
               ("bara-gate", "temperature")}  # fmt: skip
        by_hand.append(nll["bara-gate"] - nll["temperature"])
    # Rows are paired and equally many, so that the average is that of all numbers.
    assert list(found.by_world.values()) == pytest.approx(by_hand, abs=2e-6)
    low, high = ttest_1samp(by_hand, 0.0).confidence_interval(0.95)
    assert (found.as_such.low, found.as_such.high) == pytest.approx((low, high), abs=1e-5)
    assert found.decides is found.as_such  # these worlds differ by more than seeds and rows


def test_these_worlds_are_independent() -> None:
    """The variance of the average of worlds is that of each, over their number."""
    worlds = {str(n): world(n, 0.2) for n in range(101, 107)}
    found = over_worlds(worlds, "bara-gate", "temperature", "nll")
    each = []
    for runs in worlds.values():
        entry = next(e for e in compare(runs, ["temperature"]) if e["task"] == "average")["nll"]
        each.append((entry["se_seeds"] ** 2, entry["se_rows"] ** 2))
    seeds, rows = (sum(parts) / len(worlds) ** 2 for parts in zip(*each, strict=True))
    # se_rows holds some of what seeds and rows do together: between these two.
    half = found.these.width / 2
    assert 1.9 * max(seeds, rows) ** 0.5 < half < 2.4 * (seeds + rows) ** 0.5
    assert found.these.difference == pytest.approx(found.as_such.difference, abs=1e-6)


def test_what_is_refused() -> None:
    worlds = {str(n): world(n, 0.2) for n in (101, 102)}
    with pytest.raises(DataError, match="rows of 1 world"):
        over_worlds({"101": worlds["101"]}, "bara-gate", "temperature", "nll")
    fewer = worlds | {"102": [run for run in worlds["102"] if run.seed < 2]}
    with pytest.raises(DataError, match="not the same arms, tasks and seeds"):
        over_worlds(fewer, "bara-gate", "temperature", "nll")
    sure = replace(worlds["101"][0], log_probs={10: torch.tensor([[-torch.inf, 0.0]]).expand(ROWS, 2)})
    with pytest.raises(DataError, match="is not finite"):
        over_worlds(worlds | {"101": [sure, *worlds["101"][1:]]}, "bara-gate", "temperature", "nll")


def test_the_declared_reference_is_compared_with() -> None:
    declared = Comparisons(Contrast("bara-gate", "temperature", "nll"))
    lora = [replace(run, arm="lora") for run in world(101, 0.2) if run.arm == "temperature"]
    references = {entry["reference"] for entry in compare_study([*world(101, 0.2), *lora], declared)}
    assert references >= {"lora", "temperature"}


def test_arms_of_the_study(tmp_path: Path) -> None:
    """Defaults for whom the plan gives them, else what was chosen for the task."""
    for task, rate in (("micro-wgs", 1e-4), ("micro-arcc", 3e-3)):
        methods = {"temperature": {"chosen": {"train.lr": rate}}}
        write_json(tmp_path / f"101-{task}.json", {"kind": KIND, "methods": methods})
    args = Namespace(methods=["bara-gate", "temperature"], choices=str(tmp_path / "101-{task}.json"))
    arms = study.arms(args)
    assert arms["bara-gate"] == {"method": "bara-gate"}
    found = {"method": "temperature", **preset({"train.lr": 3e-3})}
    assert _settings(arms["temperature"], "micro-arcc", 0) == found
    with pytest.raises(ConfigError, match="micro-boolq"):
        _settings(arms["temperature"], "micro-boolq", 0)


SPREAD = Spread(seed=0.01**2, rows=0.004**2, tasks=6, clusters=37)


def test_a_known_variance_is_the_normal_distribution() -> None:
    assert power(0.01, 0.004, 1e7) == pytest.approx(norm.sf(1.959964 - 2.5), abs=1e-4)
    assert detectable(0.004, 1e7) == pytest.approx((1.959964 + 1.281552) * 0.004, rel=1e-4)


@pytest.mark.parametrize("worlds", [2, 3, 6])
def test_worlds_as_such_are_the_one_sample_test(worlds: int) -> None:
    """A t-test of W drawn numbers, by scipy."""
    size, draws = 2.0, 20_000
    drawn = np.random.default_rng(worlds).normal(size, 1, (draws, worlds))
    found = ttest_1samp(drawn, 0, axis=1)
    share = float(np.mean((found.pvalue < 0.05) & (found.statistic > 0)))
    expected = power(size, 1 / math.sqrt(worlds), worlds - 1)
    assert abs(share - expected) < 4.5 * math.sqrt(expected * (1 - expected) / draws)


@pytest.mark.parametrize("design", [Design(1, 3), Design(3, 10), Design(2, 5, 4.0)])
def test_a_study_that_estimates_its_variances(design: Design) -> None:
    """Seeds of each task and world, and rows of each world, drawn; the test as `crossed_interval` makes it.

    The variance of the rows is estimated with as many degrees of freedom as there are clusters, less one.
    """
    rng, studies, tasks = np.random.default_rng(7), 4000, SPREAD.tasks
    error, df = standard_error(SPREAD, design)
    truth = 2.5 * error
    w, k = design.worlds, design.seeds
    seeds = rng.normal(
        0, math.sqrt(SPREAD.seed * tasks), (studies, w, tasks, k)
    )  # of the average: SPREAD.seed
    rows = rng.normal(0, math.sqrt(SPREAD.rows / design.rows), (studies, w))
    difference = truth + seeds.mean((1, 2, 3)) + rows.mean(1)
    assert float(difference.std()) == pytest.approx(error, rel=0.05)
    parts = seeds.var(-1, ddof=1) / k / tasks**2 / w**2
    asked = SPREAD.clusters * design.rows - 1
    by_rows = SPREAD.rows / design.rows / w**2 * rng.chisquare(asked, (studies, w)) / asked
    variance = parts.sum((1, 2)) + by_rows.sum(1)
    spread = (parts**2).sum((1, 2)) / (k - 1) + (by_rows**2).sum(1) / asked
    found = difference / np.sqrt(variance)
    share = float((found > student.ppf(0.975, variance**2 / spread)).mean())
    # 0.02: Satterthwaite's degrees of freedom are those of the truth here, and estimated there.
    assert share == pytest.approx(power(truth, error, df), abs=0.02 + 4.5 * math.sqrt(0.25 / studies))


def runs(arms: dict[str, float], seeds: int, tasks: tuple[str, ...] = ("a", "b")) -> list[RunRows]:
    """Runs whose log-probabilities of the right answer are an arm's mean, a seed's and a cluster's part."""
    rng = np.random.default_rng(3)
    clusters = tuple(f"c{i // 4}" for i in range(80))
    out = []
    for task in tasks:
        by_cluster = np.repeat(rng.normal(0, 0.05, 20), 4)
        for arm, mean in arms.items():
            sign = 1.0 if arm == "ours" else 0.0
            for seed in range(seeds):
                right = -mean - 0.1 * sign * rng.normal() - sign * by_cluster
                right = np.minimum(right, -0.05)
                distribution = torch.tensor(np.stack([right, np.log1p(-np.exp(right))], axis=1))
                labels = torch.zeros(80, dtype=torch.long)
                ids = tuple(f"{task}{i}" for i in range(80))
                out.append(RunRows(arm, "", "", task, seed, task, ids, clusters, labels, {10: distribution}))
    return out


def test_spread_is_read_off_the_rows() -> None:
    """By hand: the variance of the seeds' differences, and of the clusters' mean differences."""
    made = runs({"ours": 0.6, "theirs": 0.7}, 40)
    found = spread_of(made, "ours", "theirs", "nll")
    assert (found.tasks, found.clusters) == (2, 20)
    nll = np.array([-run.log_probs[10][:, 0].numpy() for run in made])
    nll = nll.reshape(2, 2, 40, 20, 4).mean(-1)  # tasks, arms, seeds, clusters
    difference = nll[:, 0] - nll[:, 1]
    by_seed = difference.mean(-1)
    assert found.seed == pytest.approx(by_seed.var(-1, ddof=1).sum() / 2**2, rel=1e-3)
    # Clusters are drawn 2,000 times: a tenth is three standard errors of a variance.
    by_cluster = difference.mean((0, 1))
    assert found.rows == pytest.approx(21 / 19 * by_cluster.var() / 20, rel=0.1)


def test_what_no_power_is_told_of() -> None:
    with pytest.raises(ConfigError, match="'lora'"):
        spread_of(runs({"ours": 0.6, "theirs": 0.7}, 2), "lora", "theirs", "nll")
    with pytest.raises(ConfigError, match="'auc'"):
        spread_of(runs({"ours": 0.6, "theirs": 0.7}, 2), "ours", "theirs", "auc")
    with pytest.raises(DataError, match="one seed in common"):
        spread_of(runs({"ours": 0.6, "theirs": 0.7}, 1), "ours", "theirs", "nll")
